"""What an operator decides about pictures' looks holds on every decode path: background, colour profile, truncated data."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile, ImageOps
from tests.unit.media.pictures import encoded, png_of, smooth

from foveate.core.errors import MediaUndecodable
from foveate.core.media import Appearance
from foveate.media.colour import PROFILE_BYTES_MAX
from foveate.media.containers import MISSING_BYTES_MAX
from foveate.media.image import Scratch, to_pixels
from foveate.media.probe import IMAGE_FORMATS, probe

CASES = Path("tests/data/cases")
MANAGED = Appearance(icc_to_srgb=True)
PARTS = Appearance(truncated_accepted=True)
TEAL = (10, 120, 130)
ON_TEAL = Appearance(background=TEAL)


def decoded(data: bytes, look: Appearance, fit: tuple[int, int] = (0, 0)) -> np.ndarray:
    view = memoryview(data)
    return to_pixels(view, probe(view), look=look, fit=fit)


def furthest(actual: np.ndarray, expected: object) -> int:
    return int(np.abs(actual.astype(int) - np.asarray(expected, dtype=int)).max())


# --------------------------------------------------------------------------------------------------------------- background


def test_field_cases_of_transparency_show_the_background() -> None:
    for name in ("case050_LA_transparent_black.png", "case050_P_red_index0_transparent.png"):
        pixels = decoded((CASES / name).read_bytes(), ON_TEAL)
        assert (pixels == TEAL).all()


@pytest.mark.parametrize("name", ["png", "webp", "tiff", "avif", "gif"])
def test_the_background_shows_through_alpha_of_every_format(name: str) -> None:
    image = Image.new("RGBA", (16, 16), (200, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 8, 16))
    pixels = decoded(encoded(image, name), ON_TEAL)
    tolerance = 4 if name == "avif" else 0
    assert furthest(pixels[:, :7], TEAL) <= tolerance
    assert furthest(pixels[:, 9:], (200, 0, 0)) <= tolerance


def test_the_background_shows_through_an_animations_first_frame() -> None:
    frames = [Image.new("RGBA", (8, 8), (0, 0, 0, 0)), Image.new("RGBA", (8, 8), (9, 9, 9, 255))]
    for name in ("webp", "gif", "png"):
        pixels = decoded(encoded(frames[0], name, save_all=True, append_images=frames[1:]), ON_TEAL)
        assert (pixels == TEAL).all(), name


def test_the_background_shows_through_colour_keys_of_every_depth() -> None:
    colour = Image.new("RGB", (4, 4), (10, 20, 30))
    assert (decoded(encoded(colour, "png", transparency=(10, 20, 30)), ON_TEAL) == TEAL).all()
    assert (decoded(encoded(colour.convert("L"), "png", transparency=18), ON_TEAL) == TEAL).all()
    sixteen = np.full((2, 2), 1000, np.uint16)
    assert (decoded(png_of(0, sixteen, struct.pack(">H", 1000)), ON_TEAL) == TEAL).all()
    three = np.full((2, 2, 3), 1000, np.uint16)
    assert (decoded(png_of(2, three, struct.pack(">HHH", 1000, 1000, 1000)), ON_TEAL) == TEAL).all()
    bits = Image.new("1", (4, 4), 1)
    assert (decoded(encoded(bits, "png", transparency=255), ON_TEAL) == TEAL).all()


def test_opaque_pictures_do_not_know_the_background() -> None:
    for name in IMAGE_FORMATS:
        data = encoded(Image.fromarray(smooth()), name)
        assert np.array_equal(decoded(data, ON_TEAL), decoded(data, Appearance()))


# ------------------------------------------------------------------------------------------------------------ ICC profiles


def profile(kind: str) -> bytes:
    """Return a profile: the inverse of what is usual would be obvious to the eye, so LittleCMS' own are enough."""
    made = ImageCms.createProfile(kind)  # type: ignore[arg-type]
    return ImageCms.ImageCmsProfile(made).tobytes()


def swapped_srgb() -> bytes:
    """Return an sRGB profile whose red and blue primaries have changed places."""
    data = bytearray(profile("sRGB"))
    count = struct.unpack_from(">I", data, 128)[0]
    tags = {bytes(data[132 + 12 * n : 136 + 12 * n]): 132 + 12 * n for n in range(count)}
    red, blue = tags[b"rXYZ"], tags[b"bXYZ"]
    data[red : red + 4], data[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(data)


def grey_gamma_one() -> bytes:
    """Return a grey profile of linear light: 128 is shown as 188."""
    curve = b"curv" + bytes(4) + struct.pack(">I", 0)
    white = b"XYZ " + bytes(4) + struct.pack(">iii", 0xF6D6, 0x10000, 0xD32D)
    text = b"desc" + bytes(4) + struct.pack(">I", 2) + b"g\0" + bytes(78)
    tags, at = [], 128 + 4 + 12 * 3
    for name, content in ((b"kTRC", curve), (b"wtpt", white), (b"desc", text)):
        content += bytes(-len(content) % 4)
        tags.append((name, at, content))
        at += len(content)
    table = struct.pack(">I", 3) + b"".join(name + struct.pack(">II", where, len(body)) for name, where, body in tags)
    head = struct.pack(">I4sI4s4s4s", at, b"lcms", 0x02400000, b"mntr", b"GRAY", b"XYZ ")
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">iii", 0xF6D6, 0x10000, 0xD32D)
    return head.ljust(128, b"\0") + table + b"".join(body for _, _, body in tags)


WITH_PROFILES = ["jpeg", "png", "webp", "tiff", "avif"]


@pytest.mark.parametrize("name", WITH_PROFILES)
def test_an_embedded_profile_is_followed_when_told_so(name: str) -> None:
    picture = Image.fromarray(smooth())
    data = encoded(picture, name, icc_profile=swapped_srgb())
    plain = decoded(data, Appearance())
    managed = decoded(data, MANAGED)
    assert furthest(managed, plain[:, :, ::-1]) <= 3
    assert furthest(plain, decoded(encoded(picture, name), Appearance())) == 0


@pytest.mark.parametrize("name", WITH_PROFILES)
def test_colour_management_equals_pillow(name: str) -> None:
    data = encoded(Image.fromarray(smooth()), name, icc_profile=swapped_srgb())
    image = Image.open(io.BytesIO(data))
    theirs = ImageCms.profileToProfile(
        image.convert("RGB"), io.BytesIO(image.info["icc_profile"]), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    assert furthest(decoded(data, MANAGED), np.asarray(theirs)) == 0


@pytest.mark.parametrize("name", ["png", "webp", "tiff", "avif"])
def test_alpha_survives_colour_management_and_the_background_is_srgb_already(name: str) -> None:
    image = Image.new("RGBA", (16, 16), (200, 40, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 8, 16))
    pixels = decoded(encoded(image, name, icc_profile=swapped_srgb()), Appearance(TEAL, icc_to_srgb=True))
    assert furthest(pixels[:, :7], TEAL) <= 4
    assert furthest(pixels[:, 9:], (0, 40, 200)) <= 6


@pytest.mark.parametrize("name", ["jpeg", "png", "tiff"])
def test_grey_pictures_have_grey_profiles(name: str) -> None:
    grey = Image.new("L", (16, 16), 128)
    data = encoded(grey, name, icc_profile=grey_gamma_one())
    assert furthest(decoded(data, Appearance()), 128) == 0
    assert furthest(decoded(data, MANAGED), 188) <= 2
    if name != "jpeg":
        with_alpha = encoded(grey.convert("LA"), name, icc_profile=grey_gamma_one())
        assert furthest(decoded(with_alpha, MANAGED), 188) <= 2
    bits = encoded(Image.new("1", (16, 16), 1), "png", icc_profile=grey_gamma_one())
    assert furthest(decoded(bits, MANAGED), 255) == 0


def test_palettes_have_colour_profiles() -> None:
    palette = Image.fromarray(smooth()).quantize(16)
    data = encoded(palette, "png", icc_profile=swapped_srgb())
    assert furthest(decoded(data, MANAGED), np.asarray(palette.convert("RGB"))[:, :, ::-1]) <= 3


def without_profile(data: bytes, look: Appearance = MANAGED) -> bool:
    return furthest(decoded(data, look), decoded(data, Appearance())) == 0


@pytest.mark.parametrize("name", WITH_PROFILES)
@pytest.mark.parametrize(
    "useless",
    [
        b"x",
        b"\0" * 128,
        profile("sRGB")[:200],
        profile("sRGB")[:128] + b"\xff" * 400,
        profile("LAB"),
        grey_gamma_one(),
        swapped_srgb() + bytes(PROFILE_BYTES_MAX),
    ],
    ids=["one byte", "zeros", "cut", "wild tags", "LAB", "grey", "too large"],
)
def test_a_profile_of_no_use_never_fails_the_picture(name: str, useless: bytes) -> None:
    assert without_profile(encoded(Image.fromarray(smooth()), name, icc_profile=useless))


def test_cmyk_through_its_own_profile_and_not_through_another() -> None:
    cmyk = Image.fromarray(smooth()).convert("CMYK")
    for name in ("jpeg", "tiff"):
        assert without_profile(encoded(cmyk, name, icc_profile=swapped_srgb()))
        # A profile of ink that follows light would be a press's; a device link stands in: any CMYK profile LittleCMS takes.
        assert decoded(encoded(cmyk, name, icc_profile=cmyk_profile()), MANAGED).shape == (37, 61, 3)
        assert not without_profile(encoded(cmyk, name, icc_profile=cmyk_profile()))


def cmyk_profile() -> bytes:
    """Return a printer profile in which no ink is white, and any ink of one colour the grey of half its amount."""
    grid, channels = 2, 4
    head = struct.pack(">4sIBBBB", b"mft1", 0, channels, 3, grid, 0) + struct.pack(
        ">9i", *(0x10000 if n % 4 == 0 else 0 for n in range(9))
    )
    inputs = bytes(range(256)) * channels
    table = bytearray()
    for node in range(grid**channels):
        ink = bin(node).count("1")
        table += bytes([255 - 60 * ink, 128, 128])
    outputs = bytes(range(256)) * 3
    lut = head + inputs + bytes(table) + outputs
    white = b"XYZ " + bytes(4) + struct.pack(">iii", 0xF6D6, 0x10000, 0xD32D)
    text = b"desc" + bytes(4) + struct.pack(">I", 2) + b"c\0" + bytes(78)
    tags, at = [], 128 + 4 + 12 * 3
    for name, content in ((b"A2B0", lut), (b"wtpt", white), (b"desc", text)):
        content += bytes(-len(content) % 4)
        tags.append((name, at, content))
        at += len(content)
    index = struct.pack(">I", 3) + b"".join(name + struct.pack(">II", where, len(body)) for name, where, body in tags)
    start = struct.pack(">I4sI4s4s4s", at, b"lcms", 0x02400000, b"prtr", b"CMYK", b"Lab ")
    start += bytes(12) + b"acsp" + bytes(28) + struct.pack(">iii", 0xF6D6, 0x10000, 0xD32D)
    return start.ljust(128, b"\0") + index + b"".join(body for _, _, body in tags)


def test_a_jpegs_profile_in_pieces_is_put_together_and_a_missing_piece_is_no_profile() -> None:
    data = encoded(Image.fromarray(smooth()), "jpeg", icc_profile=swapped_srgb())
    at = data.index(b"ICC_PROFILE\0") - 4
    whole = swapped_srgb()
    pieces = [
        b"\xff\xe2" + struct.pack(">H", 16 + len(part)) + b"ICC_PROFILE\0" + bytes([number, 2]) + part
        for number, part in ((2, whole[300:]), (1, whole[:300]))
    ]
    rest = data[at + 2 + struct.unpack_from(">H", data, at + 2)[0] :]
    split = data[:at] + b"".join(pieces) + rest
    assert furthest(decoded(split, MANAGED), decoded(data, MANAGED)) == 0
    assert without_profile(data[:at] + pieces[0] + rest)


# ---------------------------------------------------------------------------------------------------- PNG texts and profiles


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


BOMB = zlib.compress(bytes(64 * 1024 * 1024), 9)


@pytest.mark.parametrize(
    "extra",
    [
        chunk(b"zTXt", b"comment\0\0" + BOMB),
        chunk(b"iTXt", b"comment\0\1\0\0\0" + BOMB),
        chunk(b"iCCP", b"icc\0\0" + BOMB),
        chunk(b"tEXt", b"workflow\0" + b"{}" * 1_000_000),
        chunk(b"tEXt", b"a\0b") * 20_000,
        chunk(b"zTXt", b"c\0\0" + zlib.compress(bytes(1_000_000))) * 100,
        chunk(b"eXIf", b"x" * 100_000),
    ],
    ids=["zTXt", "iTXt", "iCCP", "large tEXt", "many tEXt", "many zTXt", "eXIf"],
)
def test_what_does_not_change_a_png_is_not_looked_at(extra: bytes) -> None:
    data = encoded(Image.fromarray(smooth()), "png")
    stuffed = data[:33] + extra + data[33:]
    for look in (Appearance(), MANAGED, PARTS):
        assert np.array_equal(decoded(stuffed, look), smooth())


def test_damage_in_what_matters_of_a_png_is_still_damage() -> None:
    data = bytearray(encoded(Image.fromarray(smooth()), "png"))
    data[data.index(b"IDAT") + 20] ^= 1
    with pytest.raises(MediaUndecodable):
        decoded(bytes(data), Appearance())


# ----------------------------------------------------------------------------------------------------------- truncated data


def noisy() -> np.ndarray:
    noise = np.random.default_rng(5).integers(-20, 20, (64, 64, 3))
    return (smooth(64, 64).astype(int) + noise).clip(0, 255).astype(np.uint8)


WHOLE_HEADERS = {"tiff": {"compression": None}}


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "gif", "bmp", "avif"])
@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
def test_truncated_data_are_decoded_as_far_as_they_go_when_told_so(name: str, share: float) -> None:
    options = {"jpeg": {"quality": 98}, "gif": {"interlace": 0}}.get(name, {})
    data = encoded(Image.fromarray(noisy()), name, **options)
    whole = decoded(data, Appearance())
    cut = data[: int(len(data) * share)]
    with pytest.raises(MediaUndecodable):
        decoded(cut, Appearance())
    part = decoded(cut, PARTS)
    rows = slice(32, 64) if name == "bmp" else slice(0, 24)  # a BMP begins at the bottom
    tolerance = 8 if name == "avif" else 0
    assert np.abs(part[rows].astype(int) - whole[rows]).mean() <= tolerance
    assert part.shape == whole.shape
    assert np.array_equal(decoded(data, PARTS), whole)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_every_kind_of_truncated_jpeg_is_treated_alike(mode: str, progressive: bool) -> None:
    data = encoded(Image.fromarray(noisy()).convert(mode), "jpeg", progressive=progressive, quality=90)
    for cut in (3, 10, len(data) // 3):
        with pytest.raises(MediaUndecodable):
            decoded(data[:-cut], Appearance())
        part = decoded(data[:-cut], PARTS)
        assert part.shape == (64, 64, 3)
        assert decoded(data[:-cut], PARTS, (16, 16)).shape == (16, 16, 3)


def test_truncated_animations_and_uncompressed_tiffs() -> None:
    frames = [Image.fromarray(noisy()), Image.fromarray(255 - noisy())]
    for name in ("webp", "gif"):
        data = encoded(frames[0], name, save_all=True, append_images=frames[1:])
        whole = decoded(data, Appearance())
        cut = data[: len(data) // 3]
        assert np.array_equal(decoded(cut, PARTS)[:8], whole[:8])
    grey = Image.fromarray(noisy()[:, :, 0])
    data = encoded(grey, "tiff")
    directory_first = data[: len(data) * 3 // 4]
    if struct.unpack_from("<I", data, 4)[0] < 100:
        assert np.array_equal(decoded(directory_first, PARTS)[:40], decoded(data, Appearance())[:40])


def test_the_field_case_of_half_a_jpeg() -> None:
    half = (CASES / "case062_half.jpg").read_bytes()
    with pytest.raises(MediaUndecodable):
        decoded(half, Appearance())
    whole = decoded((CASES / "case062_no_eoi.jpg").read_bytes(), Appearance())
    assert np.abs(decoded(half, PARTS)[:16].astype(int) - whole[:16]).mean() < 1


def test_a_length_that_lies_costs_no_memory() -> None:
    webp = bytearray(encoded(Image.fromarray(noisy()), "webp"))
    webp[4:8] = struct.pack("<I", MISSING_BYTES_MAX * 4)
    with pytest.raises(MediaUndecodable):
        decoded(bytes(webp), PARTS)
    avif = bytearray(encoded(Image.fromarray(noisy()), "avif"))
    at = avif.rindex(b"mdat") - 4
    avif[at : at + 4] = struct.pack(">I", 2**32 - 1)
    with pytest.raises(MediaUndecodable):
        decoded(bytes(avif), PARTS)


def test_a_header_alone_is_never_enough() -> None:
    for name in IMAGE_FORMATS:
        data = encoded(Image.fromarray(noisy()), name)
        with pytest.raises(MediaUndecodable):
            decoded(data[:20], PARTS)


def test_pillow_forgets_the_permission() -> None:
    decoded(encoded(Image.fromarray(noisy()), "png")[:-2000], PARTS)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


# ---------------------------------------------------------------------------------------------------------- as Pillow shows


@pytest.mark.parametrize("name", IMAGE_FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA", "LA", "CMYK"])
def test_every_mode_in_every_format_equals_pillow_over_the_background(name: str, mode: str) -> None:
    image = Image.fromarray(smooth())
    if "A" in mode:
        image.putalpha(Image.fromarray(smooth()[:, :, 2]))
    try:
        data = encoded(image.convert(mode), name)
    except (OSError, ValueError):
        pytest.skip("no such mode in this format")
    theirs = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    ground = Image.new("RGBA", theirs.size, (*TEAL, 255))
    expected = Image.alpha_composite(ground, theirs.convert("RGBA")).convert("RGB")
    assert furthest(decoded(data, ON_TEAL), np.asarray(expected)) <= 1


def test_what_is_missing_never_shows_another_picture() -> None:
    data = encoded(Image.fromarray(noisy()), "jpeg", quality=98)
    for cut in range(2, len(data) - 700, 97):
        view = memoryview(data[:-cut])
        seen = []
        for shade in (0, 255):
            scratch = Scratch()
            scratch.of(64 * 64 * 3)[:] = shade
            seen.append(to_pixels(view, probe(view), scratch, look=PARTS).copy())
        assert np.array_equal(*seen)
