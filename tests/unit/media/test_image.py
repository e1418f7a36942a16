"""Pictures of every format come out upright and as Pillow shows them; damaged and costly ones are refused in fixed words. Field cases 48
and 62. What sample values mean is tested in ``test_samples``.
"""

from __future__ import annotations

import io
import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile
from tests.unit.media import bombs
from tests.unit.media.pictures import by_pillow, case, encoded, near, pixels_of, smooth

from foveate.core.errors import MediaCostly, MediaUndecodable, MediaUnsupported
from foveate.core.media import ImageHeader
from foveate.media.headers.jpeg import scans
from foveate.media.image import Scratch, scans_allowed, to_pixels
from foveate.media.probe import IMAGE_FORMATS, probe


@pytest.mark.parametrize("name", IMAGE_FORMATS)
def test_ordinary_pictures_equal_pillow(name: str) -> None:
    data = encoded(Image.fromarray(smooth()), name)
    assert np.array_equal(pixels_of(data), by_pillow(data))
    if name not in ("jpeg", "gif", "avif"):
        assert np.array_equal(pixels_of(data), smooth())


@pytest.mark.parametrize(
    "options",
    [{"subsampling": s, "progressive": p, "quality": q} for s in (0, 1, 2) for p in (False, True) for q in (30, 95)],
    ids=str,
)
def test_every_kind_of_jpeg_is_bit_equal_to_pillow(options: dict[str, int]) -> None:
    data = encoded(Image.fromarray(smooth()), "jpeg", **options)
    assert np.array_equal(pixels_of(data), by_pillow(data))


def test_grey_cmyk_and_ycck_jpeg_are_bit_equal_to_pillow() -> None:
    grey = encoded(Image.fromarray(smooth()).convert("L"), "jpeg")
    assert np.array_equal(pixels_of(grey), by_pillow(grey))
    cmyk = encoded(Image.fromarray(smooth()).convert("CMYK"), "jpeg")
    assert np.array_equal(pixels_of(cmyk), by_pillow(cmyk))
    place = cmyk.index(b"Adobe") + 11  # the colour transform byte: 2 means YCCK
    ycck = cmyk[:place] + b"\2" + cmyk[place + 1 :]
    assert np.array_equal(pixels_of(ycck), by_pillow(ycck))


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "tiff", "avif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_come_out_upright(name: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(smooth()), name, exif=exif.tobytes())
    assert np.array_equal(pixels_of(data), by_pillow(data))


def test_field_case_of_a_sideways_phone_picture() -> None:
    turned, plain = case("case048_orientation6_64x32.jpg"), case("case048_same_pixels_no_tag.jpg")
    assert np.array_equal(turned, np.rot90(plain, -1))
    top, bottom = turned[:8].mean((0, 1)), turned[-8:].mean((0, 1))
    assert top[0] > 150
    assert top[0] - top[2] > bottom[0] - bottom[2]


@pytest.mark.parametrize("frames", [1, 3])
def test_animated_webp_gives_its_first_frame(frames: int) -> None:
    images = [Image.new("RGB", (20, 10), (40 * index, 200, 90)) for index in range(frames)]
    data = encoded(images[0], "webp", save_all=True, append_images=images[1:])
    if frames == 1:  # an animation of one frame: the container says ANIM, ordinary decoders refuse it
        frame = encoded(Image.new("RGBA", (20, 10), (0, 200, 90, 255)), "webp")[12:]
        frame = frame[frame.index(b"VP8L") :]
        anmf = bytes(6) + struct.pack("<I", 19)[:3] + struct.pack("<I", 9)[:3] + bytes(4) + frame
        chunks = b"VP8X" + struct.pack("<IB3x", 10, 2) + struct.pack("<I", 19)[:3] + struct.pack("<I", 9)[:3]
        chunks += b"ANIM" + struct.pack("<I", 6) + bytes(6) + b"ANMF" + struct.pack("<I", len(anmf)) + anmf
        data = b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks
    assert near(pixels_of(data), (0, 200, 90), 2)


@pytest.mark.parametrize("name", IMAGE_FORMATS)
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_half_a_picture_is_refused(name: str, share: float) -> None:
    noise = np.random.default_rng(5).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), name)
    with pytest.raises(MediaUndecodable):
        pixels_of(data[: int(len(data) * share)])


@pytest.mark.parametrize("name", IMAGE_FORMATS)
def test_bytes_behind_the_end_do_no_harm(name: str) -> None:
    data = encoded(Image.fromarray(smooth()), name)
    assert np.array_equal(pixels_of(data + b"\0garbage\xff\xd9" * 9), pixels_of(data))


def test_field_cases_of_cut_jpegs() -> None:
    with pytest.raises(MediaUndecodable):
        case("case062_half.jpg")
    assert case("case062_no_eoi.jpg").shape == (64, 64, 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_missing_end_marker_is_the_same_on_every_path(mode: str, progressive: bool) -> None:
    data = encoded(Image.fromarray(smooth()).convert(mode), "jpeg", progressive=progressive)
    assert np.array_equal(pixels_of(data[:-2]), pixels_of(data))
    for cut in (3, 10, len(data) // 3):
        with pytest.raises(MediaUndecodable):
            pixels_of(data[:-cut])


def test_extra_bytes_before_the_end_marker_are_forgiven_as_cameras_need() -> None:
    data = encoded(Image.fromarray(smooth()), "jpeg")
    assert np.array_equal(pixels_of(data[:-2] + b"\0\0\0" + data[-2:]), pixels_of(data))


@pytest.mark.parametrize("name", IMAGE_FORMATS)
def test_another_size_than_the_header_said_is_refused(name: str) -> None:
    data = memoryview(encoded(Image.fromarray(smooth()), name))
    header = probe(data)
    for width, height in ((header.width + 1, header.height), (header.height, header.width), (1, 1), (60000, 60000)):
        with pytest.raises(MediaUndecodable):
            to_pixels(data, ImageHeader(header.format, width, height))


def test_error_texts_are_fixed() -> None:
    for name in IMAGE_FORMATS:
        data = memoryview(encoded(Image.fromarray(smooth()), name))
        with pytest.raises(MediaUndecodable) as caught:
            to_pixels(memoryview(bytes(data[: len(data) // 2])), probe(data))
        assert caught.value.public == MediaUndecodable.sentence
        assert not re.search(r"0x[0-9a-f]{4,}", caught.value.detail)


def test_pillow_is_set_as_the_module_promises() -> None:
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    assert Image.MAX_IMAGE_PIXELS is None


SEEDS = [encoded(Image.fromarray(smooth(9, 5)), name) for name in IMAGE_FORMATS]


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_mutated_files_are_decoded_or_refused(seed: bytes, at: int, patch: bytes) -> None:
    at %= len(seed)
    view = memoryview(seed[:at] + patch + seed[at + len(patch) :])
    try:
        header = probe(view)
    except (MediaUndecodable, MediaUnsupported):
        return
    if header.pixels > 1_000_000:
        return  # refused by the budget before media decode
    try:
        pixels = to_pixels(view, header)
    except MediaUndecodable:
        return
    assert pixels.shape == (header.height, header.width, 3)


def test_scratch_memory_is_reused_and_bounded() -> None:
    scratch = Scratch(bytes_max=100_000)
    small, large = encoded_jpeg(100, 50), encoded_jpeg(400, 300)
    first = to_pixels(small, probe(small), scratch).copy()
    assert np.array_equal(to_pixels(large, probe(large), scratch), to_pixels(large, probe(large)))
    again = to_pixels(small, probe(small), scratch)
    assert np.array_equal(again, first)
    assert np.shares_memory(again, scratch.of(1))
    assert scratch.of(1).size <= 100_000


def encoded_jpeg(width: int, height: int) -> memoryview:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return memoryview(buffer.getvalue())


@pytest.mark.parametrize(
    "cover",
    [
        b"",
        b"\xff\xfe\x00\x04\xff\xd9",
        b"\xff\xe1\x00\x06\xff\xda\xff\xd9",
        b"\xff\x02\xff\xff",
        b"\xff" * 9 + b"\xfe\x00\x00",
        b"\xff\xd3\xff\xd9"[:2],
    ],
    ids=["plain", "end in a comment", "end and scan in a segment", "unknown code", "fill bytes", "restart"],
)
def test_scans_are_counted_whatever_stands_between_them(cover: bytes) -> None:
    data = bombs.hidden_scans(64, 700, cover)
    ordinary = scans(bombs.scans(64, 1))[0]
    assert 8 <= ordinary <= 12
    assert scans(data) == (ordinary + 699, True)
    with pytest.raises(MediaCostly) as caught:
        pixels_of(data)
    assert (caught.value.limit_name, caught.value.limit, caught.value.actual) == ("jpeg_scans", 500, ordinary + 699)


def test_the_more_pixels_a_picture_has_the_fewer_scans_it_may_have() -> None:
    assert scans_allowed(64 * 64) == 500
    assert 10 <= scans_allowed(6000 * 6000) < 40
    assert scans_allowed(1 << 40) == scans_allowed(1 << 32) >= 17, "what encoders make is always taken"
    with pytest.raises(MediaCostly) as caught:
        pixels_of(bombs.scans(4000, scans_allowed(4000 * 4000)))
    assert "a picture of 4000x4000 may have 33" in caught.value.public


@pytest.mark.parametrize("piece", [b"\xff", b"\xff\x00", b"\xff\xfe\x00\x02", b"\xff\xda", b"\xff\xd0", b"\x00"])
def test_scans_of_any_bytes_are_counted_in_linear_time(piece: bytes) -> None:
    assert not scans(b"\xff\xd8" + piece * (2_000_000 // len(piece)))[1]
