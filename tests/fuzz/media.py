"""Fuzz target: any bytes through probe, media decode and the shipped model's processor. Only the typed refusals may come out.

The native decoders run in this process, so that one that crashes, hangs or eats memory ends it, which the fuzzer reports as a finding.
Coverage is of Python code (ours and Pillow's plugins); the decoders themselves are not instrumented.
"""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from foveate.core.errors import ImageShapeRefused, MediaCostly, MediaUndecodable, MediaUnsupported, TooManyFrames
from foveate.core.media import Appearance, ImageOptions
from foveate.media.image import to_pixels
from foveate.media.probe import IMAGE_FORMATS, probe
from foveate.models import load_picture_processor, load_prompt_side, resolve_model

PIXELS_MAX = 1 << 20
CASES = Path(__file__).parents[1] / "data" / "cases"
LOOKS = (
    Appearance(),
    Appearance(background=(1, 2, 3), icc_to_srgb=True),
    Appearance(truncated_accepted=True),
    Appearance(icc_to_srgb=True, truncated_accepted=True),
)
FITS = ((0, 0), (0, 0), (5, 3), (40, 30), (1, 1))
_PNG = b"\x89PNG\r\n\x1a\n"


def check(data: bytes) -> None:
    """Raise for anything but a picture or a typed refusal. The same bytes always take the same options."""
    choice = zlib.crc32(data)
    view = memoryview(data)
    try:
        header = probe(view)
    except (MediaUndecodable, MediaUnsupported, TooManyFrames):
        return
    assert header.format in IMAGE_FORMATS
    assert header.width > 0
    assert header.height > 0
    if header.pixels > PIXELS_MAX:
        return
    fit = FITS[choice // len(LOOKS) % len(FITS)]
    fit = (min(fit[0], header.width), min(fit[1], header.height))
    try:
        pixels = to_pixels(view, header, look=LOOKS[choice % len(LOOKS)], fit=fit)
    except (MediaUndecodable, MediaCostly):
        return
    width, height = fit[0] or header.width, fit[1] or header.height
    assert (pixels.dtype, pixels.shape) == (np.uint8, (height, width, 3))
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    _process(width, height)


@cache
def _model() -> tuple[Any, Any]:
    files = resolve_model(None)
    return load_picture_processor(files.directory), load_prompt_side(files)


@cache
def _process(width: int, height: int) -> None:
    """The processor's path depends on the shape alone, so that each is tried once."""
    processor, prompt = _model()
    pixels = np.zeros((height, width, 3), np.uint8)
    try:
        rows = processor.process(pixels, ImageOptions()).rows
    except ImageShapeRefused:
        rows = 0
    try:
        assert prompt.estimate(width, height, ImageOptions()).rows_max == rows
    except ImageShapeRefused:
        assert rows == 0


def ready() -> None:
    """Load what takes seconds before the fuzzer's clock for one input runs."""
    _process(1, 1)


def repaired(data: bytes) -> bytes:
    """Return a mutated PNG with right checksums: the decoder looks no further than a wrong one."""
    if not data.startswith(_PNG):
        return data
    fixed, at = bytearray(data), len(_PNG)
    while at + 12 <= len(fixed):
        (length,) = struct.unpack_from(">I", fixed, at)
        end = at + 8 + length
        if end + 4 > len(fixed):
            break
        struct.pack_into(">I", fixed, end, zlib.crc32(fixed[at + 4 : end]))
        at = end + 4
    return bytes(fixed)


def seeds() -> list[bytes]:
    """Return small pictures of every format and kind, and the field cases."""
    y, x = np.mgrid[0:24, 0:32]
    colour = Image.fromarray(np.stack([x * 8, y * 10, x + y], -1).astype(np.uint8))
    clear = colour.copy()
    clear.putalpha(Image.fromarray((x * 8).astype(np.uint8)))
    exif = Image.Exif()
    exif[0x0112] = 6
    more = {"save_all": True, "append_images": [colour.rotate(180), colour.rotate(90).resize(colour.size)]}
    profile = _profile()
    deep = Image.fromarray((x * 2000 + y).astype(np.uint16))
    kinds: list[tuple[Image.Image, str, dict[str, Any]]] = [
        *((colour, name, {}) for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")),
        *((clear, name, {"exif": exif}) for name in ("PNG", "WEBP", "TIFF", "AVIF")),
        *((colour, name, {"icc_profile": profile}) for name in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF")),
        *((colour, name, more) for name in ("PNG", "WEBP", "GIF", "AVIF")),
        *((colour.convert("CMYK"), name, {}) for name in ("JPEG", "TIFF")),
        *((colour.quantize(16), name, {"transparency": 3}) for name in ("PNG", "GIF")),
        *((colour.convert("1"), name, {}) for name in ("PNG", "BMP", "TIFF")),
        *((colour, "TIFF", {"compression": name}) for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")),
        (colour.convert("1"), "TIFF", {"compression": "group4"}),
        (Image.fromarray(x.astype(np.float32) / 32), "TIFF", {}),
        *((deep, name, {}) for name in ("PNG", "TIFF")),
        (colour.convert("L"), "JPEG", {"exif": exif}),
        (colour, "JPEG", {"progressive": True, "subsampling": 2}),
        (colour, "WEBP", {"lossless": True}),
        (colour, "PNG", {"transparency": (8, 10, 2)}),
    ]
    made = []
    for image, name, options in kinds:
        buffer = io.BytesIO()
        image.save(buffer, name, **options)
        made.append(buffer.getvalue())
    cases = [path.read_bytes() for path in sorted(CASES.iterdir()) if path.stat().st_size < 8192]
    return [*made, *(data for data in cases if not data.startswith(b"{"))]


def _profile() -> bytes:
    from PIL import ImageCms

    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
