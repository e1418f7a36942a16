"""A picture that is scaled down to a budget: right size, right way up, close to the best there is, and cheaper where a JPEG allows it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.unit.media.pictures import encoded, smooth

from foveate.core.errors import MediaUndecodable
from foveate.core.media import Appearance
from foveate.media.fit import scaled_down, shrink_on_load
from foveate.media.image import Scratch, to_pixels
from foveate.media.probe import IMAGE_FORMATS, probe

ORIENTED = ["jpeg", "png", "webp", "tiff", "avif"]


def photo(width: int, height: int) -> np.ndarray:
    """Return something like a photograph: soft shapes, hard edges, some noise."""
    rng = np.random.default_rng(width)
    soft = Image.fromarray(rng.integers(0, 256, (height // 32 + 2, width // 32 + 2, 3), dtype=np.uint8))
    pixels = np.asarray(soft.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = (250, 20, 20)
    return (pixels + rng.integers(-10, 10, (height, width, 1))).clip(0, 255).astype(np.uint8)


def fitted(data: bytes, fit: tuple[int, int], scratch: Scratch | None = None) -> np.ndarray:
    view = memoryview(data)
    pixels = to_pixels(view, probe(view), scratch, fit=fit)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    return pixels


def decibels(actual: np.ndarray, expected: np.ndarray) -> float:
    error = ((actual.astype(float) - expected) ** 2).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def best(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


@pytest.mark.parametrize("name", IMAGE_FORMATS)
@pytest.mark.parametrize("size", [(60, 40), (41, 27), (3, 2), (1, 1)])
def test_every_format_comes_out_at_the_size_that_fits(name: str, size: tuple[int, int]) -> None:
    data = encoded(Image.fromarray(smooth(200, 133)), name)
    assert fitted(data, size).shape == (size[1], size[0], 3)
    assert np.array_equal(fitted(data, (0, 0)), fitted(data, (200, 133)))


@pytest.mark.parametrize("name", ORIENTED)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_sideways_pictures_are_fitted_as_displayed(name: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(photo(400, 240)), name, exif=exif.tobytes())
    upright = fitted(data, (0, 0))
    height, width = (side // 5 for side in upright.shape[:2])
    assert decibels(fitted(data, (width, height)), best(upright, (width, height))) > 35


@pytest.mark.parametrize("size", [(1000, 750), (512, 384), (499, 375), (250, 187), (125, 93), (60, 45), (7, 5), (1, 1)])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_decoded_at_a_fraction_is_as_good_as_one_decoded_whole(size: tuple[int, int], mode: str) -> None:
    image = Image.fromarray(photo(2001, 1501)).convert(mode)
    data = encoded(image, "jpeg", quality=92)
    whole = fitted(data, (0, 0))
    assert decibels(fitted(data, size), best(whole, size)) > (40 if min(size) > 8 else 30)


def test_a_large_jpeg_is_not_decoded_whole() -> None:
    class Watched(Scratch):
        rows = 0

        def of(self, size: int) -> np.ndarray:
            self.memory = np.full(size, 77, np.uint8)
            return self.memory

    data = encoded(Image.new("RGB", (2000, 1500), (0, 200, 0)), "jpeg")
    scratch = Watched()
    fitted(data, (200, 150), scratch)
    touched = int((scratch.memory != 77).sum())
    assert touched <= 750 * 563 * 3, "the decoder wrote more than a picture of three eighths of the size"
    fitted(data, (0, 0), scratch)
    assert int((scratch.memory != 77).sum()) > 2000 * 1500 * 2


def test_edges_stay_where_they_are_when_eighths_do_not_divide_the_size() -> None:
    for width in (801, 803, 807):
        pixels = np.zeros((64, width, 3), np.uint8)
        pixels[:, width // 2 :] = 255
        data = encoded(Image.fromarray(pixels), "jpeg", quality=100, subsampling=0)
        assert decibels(fitted(data, (100, 8)), best(pixels, (100, 8))) > 30, width


def test_alpha_goes_over_the_background_before_it_is_scaled() -> None:
    image = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 32, 64))
    data = memoryview(encoded(image, "png"))
    pixels = to_pixels(data, probe(data), look=Appearance(background=(0, 255, 0)), fit=(8, 8))
    assert np.abs(pixels[:, :2].astype(int) - (0, 0, 255)).max() <= 3
    assert np.abs(pixels[:, 6:].astype(int) - (0, 255, 0)).max() <= 3


def test_a_fitted_picture_is_still_refused_when_it_is_damaged() -> None:
    for name in IMAGE_FORMATS:
        noise = np.random.default_rng(5).integers(0, 255, (256, 256, 3), dtype=np.uint8)
        data = encoded(Image.fromarray(noise), name)
        with pytest.raises(MediaUndecodable):
            fitted(data[: len(data) * 2 // 3], (16, 16))


def test_nothing_is_ever_enlarged() -> None:
    data = encoded(Image.fromarray(smooth(20, 10)), "png")
    assert np.array_equal(fitted(data, (40, 20)), smooth(20, 10))
    assert fitted(data, (40, 5)).shape == (5, 20, 3)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_any_size_to_any_smaller_size(width: int, height: int, fit_width: int, fit_height: int) -> None:
    target = (min(fit_width, width), min(fit_height, height))
    pixels = np.full((height, width, 3), 90, np.uint8)
    scaled = scaled_down(pixels, target, of=(width, height))
    assert scaled.shape == (target[1], target[0], 3)
    assert (scaled == 90).all()
    least = shrink_on_load((width, height), target)
    assert least == (0, 0) or (least[0] <= width / 2 and least[1] <= height / 2)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    through_jpeg = fitted(buffer.getvalue(), target)
    assert through_jpeg.shape == scaled.shape
    assert np.abs(through_jpeg.astype(int) - 90).max() <= 1
