"""The model sees what a person sees: rotation, transparency, colour spaces and depths.

Two pictures with equal pixels get equal log-probabilities, whatever form they came in; so these tests compare more than
an answer's words.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.blackbox.field_cases.marks import ANSWERED, field_case
from tests.blackbox.pictures import DESCRIBE, ask, case, data_url, draw, encoded, one, url_of
from tests.blackbox.replies import content

CHAT = "/v1/chat/completions"
ORIENTATION = 0x0112
UPRIGHT = draw(("red", "circle", 0.25, 0.5, 0.2), ("blue", "square", 0.75, 0.5, 0.2), size=(280, 196))
UPRIGHT_SAID = "A red circle and a blue square."
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How to store a picture so that this orientation tag sets it upright."""

See = Callable[[str], tuple[str, int, list[float]]]


@pytest.fixture
def see(http: httpx.Client) -> See:
    """Return a function that tells answer, prompt tokens and log-probabilities for one picture."""

    def look(url: str) -> tuple[str, int, list[float]]:
        response = http.post(CHAT, json=ask(url, DESCRIBE, logprobs=True))
        said = content(response)
        reply = response.json()
        return (
            said,
            reply["usage"]["prompt_tokens"],
            [token["logprob"] for token in reply["choices"][0]["logprobs"]["content"]],
        )

    return look


def assert_same_view(first: tuple[str, int, list[float]], second: tuple[str, int, list[float]]) -> None:
    assert first[:2] == second[:2]
    assert first[2] == pytest.approx(second[2], abs=1e-4)


def stored(orientation: int, form: str, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    turn = STORED[orientation]
    image = UPRIGHT if turn is None else UPRIGHT.transpose(turn)
    tagged = Image.open(io.BytesIO(encoded(image, "PNG", exif=exif)))
    assert ImageOps.exif_transpose(tagged).tobytes() == UPRIGHT.tobytes()
    return encoded(image, form, exif=exif, **options)


@field_case(48, "PNG and WebP with orientation tags 1 to 8: seen upright, as the same picture without a tag", ANSWERED)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "WebP"])
def test_orientation_of_lossless_pictures(see: See, form: str, orientation: int) -> None:
    data = stored(orientation, form, **({"lossless": True} if form == "WebP" else {}))
    assert_same_view(see(data_url(data, f"image/{form.lower()}")), see(url_of(UPRIGHT)))


@field_case(48, "JPEG with orientation tags 1 to 8", ANSWERED)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_photographs(see: See, orientation: int) -> None:
    said, tokens, _ = see(data_url(stored(orientation, "JPEG", quality=95), "image/jpeg"))
    assert (said, tokens) == (UPRIGHT_SAID, see(url_of(UPRIGHT))[1])


@field_case(48, "the same pixels with and without a tag: two pictures, in the caches too", ANSWERED)
def test_orientation_tells_two_files_apart(see: See) -> None:
    """Same pixels in the file, one with a tag: two pictures, neither served from the other's cache entry."""
    tagged, plain = (
        data_url(case(f"case048_{name}.jpg"), "image/jpeg") for name in ("orientation6_64x32", "same_pixels_no_tag")
    )
    assert see(tagged)[2] != pytest.approx(see(plain)[2], abs=1e-4)


def on_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba).convert("RGB")


def test_transparent_background_is_white(see: See) -> None:
    cut_out = draw(("red", "circle", 0.5, 0.5, 0.3), background=(0, 0, 0, 0), mode="RGBA")
    pixels = np.array(cut_out)
    pixels[pixels[..., 3] < 255] = 0
    hard = Image.fromarray(pixels, "RGBA")
    view = see(url_of(hard))
    assert view[0] == "A red circle."
    assert_same_view(view, see(url_of(on_white(hard))))
    assert_same_view(view, see(data_url(encoded(hard, "WebP", lossless=True, exact=True), "image/webp")))


def test_half_transparent_edges(see: See) -> None:
    soft = Image.composite(
        one("blue", "star").convert("RGBA"),
        Image.new("RGBA", (224, 224), (0, 0, 0, 0)),
        Image.radial_gradient("L").resize((224, 224)).point(lambda level: 255 - level),
    )
    said, tokens, seen = see(url_of(soft))
    flat = see(url_of(on_white(soft)))
    assert (said, tokens) == flat[:2]
    assert seen == pytest.approx(flat[2], abs=0.05)


@field_case(50, "pictures whose every pixel is transparent, RGBA and LA: seen white", ANSWERED)
def test_hidden_colour_stays_hidden(see: See) -> None:
    """A picture whose every pixel is transparent looks white, whatever colours its pixels have."""
    white = see(url_of(Image.new("RGB", (224, 224), "white")))
    hidden = one("red", "circle").convert("RGBA")
    hidden.putalpha(0)
    assert_same_view(see(url_of(hidden)), white)
    assert_same_view(see(url_of(Image.new("LA", (224, 224), (0, 0)))), white)


@field_case(50, "LA with A=0; a palette whose red is transparent: seen on white", ANSWERED)
@pytest.mark.parametrize("name", ["case050_LA_transparent_black.png", "case050_P_red_index0_transparent.png"])
def test_recorded_transparency(see: See, name: str) -> None:
    assert_same_view(see(data_url(case(name))), see(url_of(on_white(Image.open(io.BytesIO(case(name)))))))


def test_palette_with_a_transparent_entry(see: See) -> None:
    palette = Image.new("P", (224, 224), 1)
    palette.putpalette([0, 0, 0, 255, 255, 255, 222, 20, 20])
    shape = np.array(one("red", "circle").convert("L")) < 128
    pixels = np.where(shape, 2, 0).astype(np.uint8)
    palette.frombytes(pixels.tobytes())
    view = see(data_url(encoded(palette, transparency=0)))
    assert_same_view(
        view, see(url_of(Image.fromarray(np.where(shape[..., None], (222, 20, 20), (255, 255, 255)).astype(np.uint8))))
    )


@field_case(50, "RGB PNG with a colour key", ANSWERED)
def test_colour_key_of_an_rgb_png(see: See) -> None:
    shape = np.array(one("blue", "circle").convert("L")) < 200
    key, fill = (1, 2, 3), (35, 75, 215)
    keyed = Image.fromarray(np.where(shape[..., None], fill, key).astype(np.uint8))
    flat = Image.fromarray(np.where(shape[..., None], fill, (255, 255, 255)).astype(np.uint8))
    assert_same_view(see(data_url(encoded(keyed, transparency=key))), see(url_of(flat)))


@field_case(51, "1-bit, grey, LA, palette and RGBA forms of one picture: seen alike", ANSWERED)
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_modes_of_the_same_picture(see: See, mode: str) -> None:
    image = one("black", "circle").convert("L").point(lambda level: 255 if level > 127 else 0)
    plain = see(url_of(image.convert("RGB")))
    assert plain[0] == "A black circle."
    assert_same_view(see(url_of(image.convert(mode))), plain)


@field_case(53, "16-bit grey as PNG and TIFF: seen as its 8-bit form", ANSWERED)
@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits(see: See, form: str) -> None:
    """Scaled to eight bits, not clipped to white."""
    grey = np.array(one("black", "star").convert("L"))
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    view = see(data_url(encoded(deep, form), f"image/{form.lower()}"))
    assert_same_view(view, see(url_of(Image.fromarray(grey).convert("RGB"))))


@field_case(53, "a ramp from 0 to 65535", ANSWERED)
def test_recorded_ramp_is_no_white_picture(see: See) -> None:
    ramp = np.array(Image.open(io.BytesIO(case("case053_ramp16.png"))))
    eight = Image.fromarray((ramp.astype(np.uint32) // 257).astype(np.uint8)).convert("RGB")
    assert see(data_url(case("case053_ramp16.png")))[2] == pytest.approx(see(url_of(eight))[2], abs=0.05)


@field_case(52, "CMYK JPEG and TIFF of coloured shapes", ANSWERED)
@pytest.mark.parametrize("form", ["JPEG", "TIFF"])
@pytest.mark.parametrize("colour", ["red", "blue"])
def test_cmyk(see: See, form: str, colour: str) -> None:
    options = {"quality": 95} if form == "JPEG" else {}
    data = encoded(one(colour, "square").convert("CMYK"), form, **options)
    assert see(data_url(data, f"image/{form.lower()}"))[0] == f"A {colour} square."


@field_case(52, "CMYK JPEG with the Adobe marker: cyan", ANSWERED)
def test_recorded_cmyk_is_cyan(see: See) -> None:
    view = see(data_url(case("case052_adobe_cyan_16x16.jpg"), "image/jpeg"))
    assert_same_view(view, see(url_of(Image.new("RGB", (16, 16), (0, 255, 255)))))


@field_case(51, "a grey JPEG of 224×224", ANSWERED)
def test_grey_photograph(see: See) -> None:
    grey = Image.open(io.BytesIO(case("case051_L_224.jpg")))
    assert_same_view(see(data_url(case("case051_L_224.jpg"), "image/jpeg")), see(url_of(grey.convert("RGB"))))


@pytest.mark.parametrize("form", ["GIF", "WebP", "PNG", "TIFF"])
def test_first_frame_of_an_animation(see: See, form: str) -> None:
    options: dict[str, Any] = {"WebP": {"lossless": True}}.get(form, {})
    frames = [one("red", "circle"), one("blue", "square")]
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:], **options)
    assert see(data_url(data, f"image/{form.lower()}"))[0] == "A red circle."
