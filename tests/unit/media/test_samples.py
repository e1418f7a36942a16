"""Sample values of every depth, mode and transparency come out as people see them. Field cases 50 to 53, 55 and 66."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image
from tests.unit.media.pictures import case, encoded, near, pixels_of, png_of, smooth, tiff_grey16


def test_field_cases_of_transparency_are_white() -> None:
    assert (case("case050_LA_transparent_black.png") == 255).all()
    assert (case("case050_P_red_index0_transparent.png") == 255).all()


@pytest.mark.parametrize("name", ["png", "webp", "tiff", "avif"])
def test_half_transparent_goes_half_to_white(name: str) -> None:
    image = Image.new("RGBA", (16, 16), (200, 0, 0, 128))
    assert near(pixels_of(encoded(image, name)), (227, 127, 127), 3 if name == "avif" else 1)


def test_colour_keys_are_transparent() -> None:
    colour = smooth(16, 16)
    colour[0, 0] = (10, 20, 30)
    pixels = pixels_of(encoded(Image.fromarray(colour), "png", transparency=(10, 20, 30)))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert np.array_equal(pixels[1:], colour[1:])
    grey = np.full((4, 4), 7, np.uint8)
    grey[0, 0] = 9
    pixels = pixels_of(encoded(Image.fromarray(grey), "png", transparency=7))
    assert pixels[0, 0].tolist() == [9, 9, 9]
    assert (pixels[1:] == 255).all()


def test_palette_with_graded_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    assert pixels_of(encoded(image, "png", transparency=bytes([0, 255]))).tolist() == [[[255, 255, 255], [0, 0, 255]]]


def test_gif_gives_its_first_frame_over_white() -> None:
    first = Image.new("P", (8, 8), 1)
    first.putpalette([0, 0, 0, 0, 200, 0])
    first.paste(0, (0, 0, 4, 8))
    second = Image.new("P", (8, 8), 0)
    second.putpalette([9, 9, 9])
    pixels = pixels_of(encoded(first, "gif", save_all=True, append_images=[second], transparency=0))
    assert (pixels[:, :4] == 255).all()
    assert (pixels[:, 4:] == (0, 200, 0)).all()


def test_field_cases_of_unusual_modes() -> None:
    assert near(case("case051_L_224.jpg"), 128, 1)
    assert near(case("case052_adobe_cyan_16x16.jpg"), (0, 255, 255), 3)
    ramp = case("case053_ramp16.png")
    assert len(np.unique(ramp)) == 256
    assert 125 < ramp.mean() < 130
    assert case("case055_1x1.png").shape == (1, 1, 3)
    assert case("case055_499x1.png").shape == (1, 499, 3)
    assert near(case("case066_32x32.avif"), (255, 0, 0), 4)


@pytest.mark.parametrize("name", ["png", "bmp", "gif", "tiff"])
def test_black_and_white_and_palette(name: str) -> None:
    bits = Image.fromarray(smooth()[:, :, 0] > 100).convert("1")
    assert np.array_equal(pixels_of(encoded(bits, name)), np.asarray(bits.convert("RGB")))
    palette = Image.fromarray(smooth()).quantize(16)
    assert np.array_equal(pixels_of(encoded(palette, name)), np.asarray(palette.convert("RGB")))


@pytest.mark.parametrize("name", ["png", "tiff"])
def test_sixteen_bit_grey_is_scaled(name: str) -> None:
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    pixels = pixels_of(encoded(Image.fromarray(ramp), name))
    assert np.array_equal(pixels[:, :, 0], (ramp >> 8).astype(np.uint8))
    assert np.array_equal(pixels[:, :, 0], pixels[:, :, 2])


def test_big_endian_and_white_is_zero_sixteen_bit_tiff() -> None:
    values = np.array([[0, 1000, 40000, 65535]], dtype=np.uint16)
    for order, photometric in (("<", 1), (">", 1), ("<", 0)):
        shown = 255 - (values >> 8) if photometric == 0 else values >> 8
        assert pixels_of(tiff_grey16(values, order, photometric))[0, :, 0].tolist() == shown[0].tolist()


def test_sixteen_bit_colour_and_alpha_are_scaled() -> None:
    colour = np.array([[[0, 300, 65535], [65535, 32768, 256]]], dtype=np.uint16)
    assert pixels_of(png_of(2, colour)).tolist() == (colour >> 8).tolist()
    with_alpha = np.array([[[0, 0, 0, 65535], [0, 0, 0, 0]]], dtype=np.uint16)
    assert pixels_of(png_of(6, with_alpha)).tolist() == [[[0, 0, 0], [255, 255, 255]]]
    grey_alpha = np.array([[[0, 65535], [0, 0]]], dtype=np.uint16)
    assert pixels_of(png_of(4, grey_alpha)).tolist() == [[[0, 0, 0], [255, 255, 255]]]


def test_sixteen_bit_colour_keys() -> None:
    grey = np.array([[1000, 1001]], dtype=np.uint16)
    assert pixels_of(png_of(0, grey, struct.pack(">H", 1000)))[0, :, 0].tolist() == [255, 3]
    colour = np.array([[[1000, 2000, 3000], [60000, 2000, 3000]]], dtype=np.uint16)
    pixels = pixels_of(png_of(2, colour, struct.pack(">HHH", 1000, 2000, 3000)))
    assert pixels.tolist() == [[[255, 255, 255], [234, 7, 11]]]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 100.0, 255.0], [0, 100, 255]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([np.nan, 0.0, 1.0], [0, 0, 255]),
        ([0.0, 0.0, 70000.0], [0, 0, 255]),
    ],
)
def test_float_tiff_is_scaled_by_its_range(values: list[float], shown: list[int]) -> None:
    pixels = pixels_of(encoded(Image.fromarray(np.array([values], dtype=np.float32)), "tiff"))
    assert pixels[0, :, 0].tolist() == shown


def test_a_float_tiff_of_one_value_is_not_a_division_by_zero() -> None:
    for value in (-5.0, 0.0, 1e9, np.inf):
        assert pixels_of(encoded(Image.fromarray(np.full((2, 2), value, np.float32)), "tiff")).shape == (2, 2, 3)


def test_cmyk_tiff() -> None:
    image = Image.new("CMYK", (4, 4), (255, 0, 0, 0))
    assert near(pixels_of(encoded(image, "tiff")), (0, 255, 255), 3)
