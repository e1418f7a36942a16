"""Headers read here agree with what decoders say, and no bytes whatever raise anything but the two answers."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from foveate.core.errors import MediaUndecodable, MediaUnsupported, TooManyFrames
from foveate.core.media import ImageHeader
from foveate.media.headers.raster import CHUNKS_MAX
from foveate.media.probe import IMAGE_FORMATS, Accepted, probe
from foveate.settings import Settings
from foveate.settings.declare import PictureFormat

CASES = Path("tests/data/cases")
ENCODERS = {
    "jpeg": {"format": "JPEG"},
    "png": {"format": "PNG"},
    "webp": {"format": "WEBP"},
    "gif": {"format": "GIF"},
    "bmp": {"format": "BMP"},
    "tiff": {"format": "TIFF"},
    "avif": {"format": "AVIF"},
}


COUNTED = Accepted(frames_max=2**32)


def picture(width: int = 13, height: int = 7, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(width * 1000 + height).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def exif_with(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def header_of(data: bytes) -> ImageHeader:
    return probe(memoryview(data), COUNTED)


@pytest.mark.parametrize("name", IMAGE_FORMATS)
@pytest.mark.parametrize("size", [(13, 7), (1, 1), (499, 1), (640, 480)])
def test_reads_every_accepted_format(name: str, size: tuple[int, int]) -> None:
    assert header_of(encoded(picture(*size), **ENCODERS[name])) == ImageHeader(name, *size)


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "tiff", "avif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_is_as_displayed(name: str, orientation: int) -> None:
    data = encoded(picture(13, 7), exif=exif_with(orientation), **ENCODERS[name])
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    header = header_of(data)
    assert (header.width, header.height) == shown.size
    assert header.orientation == orientation


def test_field_case_of_a_sideways_phone_picture() -> None:
    turned = header_of((CASES / "case048_orientation6_64x32.jpg").read_bytes())
    assert (turned.width, turned.height, turned.orientation) == (32, 64, 6)
    plain = header_of((CASES / "case048_same_pixels_no_tag.jpg").read_bytes())
    assert (plain.width, plain.height, plain.orientation) == (64, 32, 1)


@pytest.mark.parametrize("byte_order", [b"II", b"MM"])
def test_both_byte_orders_of_exif(byte_order: bytes) -> None:
    order = "<" if byte_order == b"II" else ">"
    block = byte_order + struct.pack(order + "HIHHHIHHI", 42, 8, 1, 0x0112, 3, 1, 8, 0, 0)
    assert header_of(encoded(picture(), format="JPEG", exif=b"Exif\0\0" + block)).orientation == 8
    assert header_of(encoded(picture(), format="PNG", exif=block)).orientation == 8


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"II",
        b"II*\0\xff\xff\xff\xff",
        b"Exif\0\0",
        b"II*\0\x08\0\0\0\xff\xff",
        exif_with(0),
        exif_with(9),
        b"\0" * 40,
    ],
)
def test_damaged_exif_is_no_orientation(block: bytes) -> None:
    for data in (
        encoded(picture(), format="PNG", exif=block or b"x"),
        encoded(picture(), format="JPEG", exif=b"Exif\0\0" + block),
    ):
        header = header_of(data)
        assert (header.width, header.height, header.orientation) == (13, 7, 1)


def test_counts_frames_where_the_header_does() -> None:
    frames = [picture(), picture(mode="L").convert("RGB"), picture()]
    for name in ("PNG", "WEBP"):
        data = encoded(frames[0], format=name, save_all=True, append_images=frames[1:])
        assert header_of(data).frames == Image.open(io.BytesIO(data)).n_frames > 1


def test_webp_in_its_three_kinds() -> None:
    for options in ({"quality": 50}, {"lossless": True}, {"exif": exif_with(1), "quality": 50}):
        data = encoded(picture(300, 200), format="WEBP", **options)
        assert header_of(data) == ImageHeader("webp", 300, 200)


def test_a_gif_frame_beyond_the_screen_enlarges_it() -> None:
    data = bytearray(encoded(picture(13, 7), format="GIF"))
    data[6:10] = struct.pack("<HH", 5, 5)
    header = header_of(bytes(data))
    assert (header.width, header.height) == Image.open(io.BytesIO(bytes(data))).size == (13, 7)


def test_bmp_from_the_top_and_with_the_oldest_header() -> None:
    data = bytearray(encoded(picture(13, 7), format="BMP"))
    data[22:26] = struct.pack("<i", -7)
    assert header_of(bytes(data)) == ImageHeader("bmp", 13, 7)
    old = b"BM" + struct.pack("<IHHIIHHHH", 26 + 3 * 24, 0, 0, 26, 12, 7, 3, 1, 24) + bytes(3 * 24)
    assert header_of(old) == ImageHeader("bmp", 7, 3)


def test_a_huge_claim_is_read_not_allocated() -> None:
    header = header_of((CASES / "case059_header_60000x60000.png").read_bytes())
    assert header.pixels == 3_600_000_000


@pytest.mark.parametrize(
    ("file", "looks"),
    [
        ("case030_html_error_page.jpg", "HTML"),
        ("case030_json_error_body.png", "JSON"),
        ("case065_ftypheic_named.jpg", "HEIC"),
        ("case067_external_ref.svg", "SVG"),
        ("case018_hls_named_mp4.mp4", "playlist"),
        ("case079_ftyp_only.mp4", "MP4"),
        ("case079_audio_only.wav", "WAV"),
        ("case061_garbage5.bin", "not an accepted picture"),
    ],
)
def test_says_what_foreign_bytes_look_like(file: str, looks: str) -> None:
    with pytest.raises(MediaUnsupported) as caught:
        header_of((CASES / file).read_bytes())
    assert looks in caught.value.public
    assert "Accepted formats: JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF." in caught.value.public


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (b"%PDF-1.4\n", "PDF"),
        (b"SIMPLE  =                    T", "FITS"),
        (b"8BPS\0\1", "Photoshop"),
        (b"\0\0\1\0\1\0\x10\x10", "ICO"),
        (b"Not Found", "text"),
        (b"BMW and other cars on the road", "text"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"\xef\xbb\xbf <!DOCTYPE HTML>", "HTML"),
        (b"II+\0\x08\0\0\0", "BigTIFF"),
        (b"   ", "white space"),
        (b"P6\n4 4\n255\n" + b"0" * 48, "PPM"),
        (b"P3 1 1 255 0 0 0", "PPM"),
        (b"P6 is the sixth of them", "text"),
    ],
)
def test_formats_nobody_needs_never_reach_a_decoder(data: bytes, looks: str) -> None:
    with pytest.raises(MediaUnsupported) as caught:
        header_of(data)
    assert looks in caught.value.public


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff\xe0\xff\xff",
        b"\x89PNG\r\n\x1a\n",
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 0, 5) + bytes(9),
        b"RIFF\0\0\0\0WEBPVP8 ",
        b"GIF89a\1\0\1\0\0\0\0",
        b"GIF89a\1\0\1\0\0\0\0;",
        b"II*\0\x08\0\0\0\0\0",
        b"MM\0*\xff\xff\xff\xff",
        b"\0\0\0\x14ftypavif\0\0\0\0avif",
    ],
)
def test_damaged_headers_are_undecodable(data: bytes) -> None:
    with pytest.raises(MediaUndecodable):
        header_of(data)


def seeds() -> list[bytes]:
    small = [
        encoded(picture(9, 5), exif=exif_with(6), **options)
        for name, options in ENCODERS.items()
        if name not in ("gif", "bmp")
    ]
    return [*small, encoded(picture(9, 5), format="GIF"), encoded(picture(9, 5), format="BMP")]


SEEDS = seeds()


def answered(data: bytes) -> None:
    try:
        header = header_of(data)
    except (MediaUnsupported, MediaUndecodable):
        return
    assert header.format in IMAGE_FORMATS
    assert header.width > 0
    assert header.height > 0
    assert 1 <= header.orientation <= 8


@given(st.binary(max_size=300))
@example(b"\0\0\0\0ftyp")
@example(b"\0\0\0\x08ftyp")
def test_random_bytes_are_answered(data: bytes) -> None:
    answered(data)


@given(st.sampled_from(SEEDS), st.binary(max_size=40), st.integers(0, 200))
def test_overwritten_and_cut_headers_are_answered(seed: bytes, patch: bytes, at: int) -> None:
    data = seed[:at] + patch + seed[at + len(patch) :]
    answered(data)
    answered(seed[:at])
    answered(seed[: at + len(patch)] + patch)


MAGIC = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8X", b"GIF89a", b"II*\0", b"\0\0\0\x10ftypavif"]


@given(st.sampled_from(MAGIC), st.binary(max_size=200))
def test_random_bytes_behind_a_magic_number_are_answered(magic: bytes, rest: bytes) -> None:
    answered(magic + rest)


def test_walks_are_bounded() -> None:
    """Each of these would be millions of steps if a limit were missing."""
    chunk = struct.pack(">I4s", 0, b"zzzz") + struct.pack(">I", zlib.crc32(b"zzzz"))
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 3, 5) + bytes(9) + chunk * 1_000_000
    assert header_of(png) == ImageHeader("png", 3, 5)
    for endless in (b"\xff\xd8" + b"\xff" * 20_000_000, b"\xff\xd8" + b"\xff\xe1\0\2" * 5_000_000):
        with pytest.raises(MediaUndecodable):
            header_of(endless)
    for endless in (
        b"GIF89a\1\0\1\0\0\0\0" + b"\x21\xff\1\0\0" * 4_000_000,
        b"GIF89a\1\0\1\0\0\0\0\x21\xff" + b"\1" * 20_000_000,
    ):
        with pytest.raises(MediaUndecodable):
            header_of(endless)


# ---------------------------------------------------------------------------------------------- formats that are accepted


@pytest.mark.parametrize("name", IMAGE_FORMATS)
def test_a_format_that_is_switched_off_is_refused_by_its_name(name: str) -> None:
    others = tuple(other for other in IMAGE_FORMATS if other != name)
    data = memoryview(encoded(picture(), **ENCODERS[name]))
    with pytest.raises(MediaUnsupported) as caught:
        probe(data, Accepted(others))
    assert caught.value.public.startswith(f"The media looks like {'an' if name == 'avif' else 'a'} ")
    named, _, listed = caught.value.public.lower().partition("accepted formats: ")
    assert name in named
    assert listed.rstrip(".").split(", ") == list(others)
    assert probe(data, Accepted((name,))).format == name


def test_the_settings_know_the_same_formats() -> None:
    assert get_args(PictureFormat) == IMAGE_FORMATS == Settings().media.formats
    assert Settings().media.animation_frames_max == Accepted().frames_max


# --------------------------------------------------------------------------------------------------------------- animations


def gif_of(frames: int, *, blocks: bytes = b"\x02\x4c\x01\0") -> bytes:
    """Return a GIF of one pixel and ``frames`` frames; ``blocks`` are a frame's picture data."""
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(6)
    extension = b"\x21\xf9\x04\0\0\0\0\0"
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02" + blocks
    return screen + (extension + frame) * frames + b";"


@pytest.mark.parametrize("frames", [2, 3, 900])
def test_frames_of_a_gif_are_counted_through_every_kind_of_block(frames: int) -> None:
    assert header_of(gif_of(frames)).frames == frames
    images = [picture(20, 20).rotate(90 * turns).convert("P") for turns in range(3)]
    data = encoded(images[0], format="GIF", save_all=True, append_images=images[1:], comment=b"x" * 600)
    assert header_of(data).frames == 3 == Image.open(io.BytesIO(data)).n_frames


def test_a_cut_gif_has_the_frames_that_came() -> None:
    whole = gif_of(5)
    counted = {header_of(whole[:end]).frames for end in range(40, len(whole))}
    assert counted == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", ["PNG", "WEBP", "GIF", "AVIF"])
def test_more_frames_than_allowed_are_refused(name: str) -> None:
    frames = [Image.new("RGB", (16, 16), (20 * index, 5, 5)) for index in range(4)]
    data = memoryview(encoded(frames[0], format=name, save_all=True, append_images=frames[1:], duration=50))
    assert probe(data, Accepted(frames_max=4)).frames == 4
    with pytest.raises(TooManyFrames) as caught:
        probe(data, Accepted(frames_max=3))
    assert (caught.value.limit, caught.value.actual) == (3, 4)
    assert caught.value.limit_name == "media.animation_frames_max"


def test_a_walk_that_is_cut_short_counts_what_it_saw() -> None:
    endless = gif_of(100_000)
    assert 2000 < header_of(endless).frames < 5000
    with pytest.raises(TooManyFrames):
        probe(memoryview(endless), Accepted(frames_max=2000))
    huge_first_frame = gif_of(3, blocks=b"\x02" + b"\x01a" * 20_000 + b"\0")
    assert header_of(huge_first_frame).frames == 1
    anmf = b"ANMF" + struct.pack("<I", 0)
    webp = b"RIFF" + struct.pack("<I", 0) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\2" + bytes(9) + anmf * 100_000
    assert header_of(webp).frames == CHUNKS_MAX
    claims = bytearray(encoded(picture(), format="PNG", save_all=True, append_images=[picture(14)]))
    at = claims.index(b"acTL") + 4
    claims[at : at + 4] = struct.pack(">I", 2**32 - 1)
    assert header_of(bytes(claims)).frames == 2**32 - 1


@pytest.mark.parametrize("cut", ["trak", "mdia", "minf", "stbl", "stsz"])
def test_an_avif_sequence_whose_track_is_damaged_is_a_still(cut: str) -> None:
    frames = [Image.new("RGB", (16, 16), (20 * index, 5, 5)) for index in range(4)]
    data = encoded(frames[0], format="AVIF", save_all=True, append_images=frames[1:])
    assert header_of(data).frames == 4
    assert header_of(data.replace(cut.encode(), b"free")).frames == 1
