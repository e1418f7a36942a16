"""Small pictures in every format and sample type, and what this server and Pillow make of them."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from foveate.media.image import to_pixels
from foveate.media.probe import IMAGE_FORMATS, probe

CASES = Path("tests/data/cases")
PILLOW_NAMES = {name: name.upper() for name in IMAGE_FORMATS}
LOSSLESS = {"webp": {"lossless": True}, "avif": {"quality": 100, "subsampling": "4:4:4"}}


def smooth(width: int = 61, height: int = 37) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    planes = [x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1), (x + y) % 256]
    return np.stack(planes, -1).astype(np.uint8)


def encoded(image: Image.Image, name: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, PILLOW_NAMES[name], **{**LOSSLESS.get(name, {}), **options})
    return buffer.getvalue()


def pixels_of(data: bytes) -> np.ndarray:
    view = memoryview(data)
    header = probe(view)
    pixels = to_pixels(view, header)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (header.height, header.width, 3)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    return pixels


def case(name: str) -> np.ndarray:
    return pixels_of((CASES / name).read_bytes())


def by_pillow(data: bytes) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def near(actual: np.ndarray, expected: object, tolerance: int) -> bool:
    return bool(np.abs(actual.astype(int) - np.asarray(expected, dtype=int)).max() <= tolerance)


def tiff_grey16(values: np.ndarray, order: str, photometric: int) -> bytes:
    height, width = values.shape
    tags = [
        (256, width),
        (257, height),
        (258, 16),
        (259, 1),
        (262, photometric),
        (273, 8),
        (277, 1),
        (278, height),
        (279, values.nbytes),
    ]
    raster = values.astype(order + "u2").tobytes()
    directory = struct.pack(order + "H", len(tags))
    for tag, value in tags:
        directory += struct.pack(
            order + "HHIHH" if tag not in (273, 279) else order + "HHII",
            *((tag, 3, 1, value, 0) if tag not in (273, 279) else (tag, 4, 1, value)),
        )
    mark = b"II" if order == "<" else b"MM"
    return mark + struct.pack(order + "HI", 42, 8 + len(raster)) + raster + directory + bytes(4)


def png_of(colour_type: int, samples: np.ndarray, transparency: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = samples.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0))
    key = chunk(b"tRNS", transparency) if transparency else b""
    return b"\x89PNG\r\n\x1a\n" + head + key + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
