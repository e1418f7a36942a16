"""Headers read here agree with what decoders say, and no bytes whatever raise anything but the two answers."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from foveate.core.errors import MediaUndecodable, MediaUnsupported
from foveate.core.media import ImageHeader
from foveate.media.probe import IMAGE_FORMATS, probe

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
    return probe(memoryview(data))


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
