"""Small files that ask for much: made here, so that none needs to be kept."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a PNG chunk."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, rows: bytes, *extra: bytes, depth: int = 8, colour: int = 0) -> bytes:
    """Return a PNG of ``rows``, already compressed, whatever its header says."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def zeros(size: int) -> bytes:
    """Return ``size`` zeros compressed, a thousandth of them; one mebibyte is compressed and repeated."""
    packer, step = zlib.compressobj(9), 1 << 20
    first, again = (packer.compress(bytes(step)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    rest = packer.compress(bytes(size % step)) + packer.flush(zlib.Z_FULL_FLUSH)
    whole = (first + again * (size // step - 1) if size >= step else zlib.compress(b"")[:2]) + rest
    return whole + b"\x03\0" + struct.pack(">I", size % 65521 << 16 | 1)


def scans(side: int, count: int) -> bytes:
    """Return a progressive JPEG of one flat colour that repeats its last scan: each is a pass over the whole picture."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 40)).save(buffer, "JPEG", progressive=True, quality=50)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


def hidden_scans(side: int, count: int, cover: bytes) -> bytes:
    """Return such a JPEG with ``cover`` before its repeated scans."""
    data = scans(side, count)
    first = data.index(b"\xff\xda")
    second = data.index(b"\xff\xda", first + 2)
    return data[:second] + cover + data[second:]


def tiff(entries: list[tuple[int, int, int, int]], tail: bytes = b"") -> bytes:
    """Return a TIFF with one directory of (tag, type, count, value) behind its header, and ``tail``."""
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II" + struct.pack("<HI", 42, 8) + directory + bytes(4) + tail


GREY_TIFF = [(256, 4, 1, 64), (257, 4, 1, 64), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1)]


def many_strips(count: int) -> bytes:
    """Return a TIFF of 64x64 that says to lie in ``count`` strips."""
    start = 8 + 2 + 12 * (len(GREY_TIFF) + 3) + 4
    table = struct.pack("<I", start) * count
    return tiff([*GREY_TIFF, (273, 4, count, start), (278, 4, 1, 1), (279, 4, count, start)], table * 2)


def many_values(tags: int, size: int) -> bytes:
    """Return a TIFF in which each of ``tags`` tags names the same ``size`` bytes."""
    start = 8 + 2 + 12 * (len(GREY_TIFF) + 2 + tags) + 4
    named = [(40_000 + number, 1, size, start) for number in range(tags)]
    return tiff([*GREY_TIFF, (273, 4, 1, start), (279, 4, 1, 4096), *named], bytes(size))


def flat_gif(width: int, height: int) -> bytes:
    """Return a GIF of one colour: LZW makes thousands of pixels of each byte."""
    buffer = io.BytesIO()
    Image.new("P", (width, height), 1).save(buffer, "GIF")
    return buffer.getvalue()


def gif_of_frames(frames: int) -> bytes:
    """Return an animation of one pixel."""
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(6)
    return screen + (b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x4c\x01\0") * frames + b";"


def avif_that_says(width: int, height: int, *, holds: int) -> bytes:
    """Return an AVIF whose container says one size and whose AV1 frame has sides of ``holds``."""
    buffer = io.BytesIO()
    Image.new("RGB", (holds, holds), (10, 200, 40)).save(buffer, "AVIF", speed=10)
    data = bytearray(buffer.getvalue())
    at = data.index(b"ispe") + 8
    data[at : at + 8] = struct.pack(">II", width, height)
    return bytes(data)


def webp_that_says(width: int, height: int, *, holds: int) -> bytes:
    """Return an extended WebP whose canvas is smaller than the picture in it."""
    buffer = io.BytesIO()
    Image.new("RGB", (holds, holds), (10, 200, 40)).save(buffer, "WEBP", lossless=True)
    canvas = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"VP8X" + struct.pack("<I", 10) + bytes(4) + canvas + buffer.getvalue()[12:]
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def sixteen_bit_colour(side: int) -> bytes:
    """Return a PNG of ``side`` x ``side`` pixels with four 16-bit samples each, all zero."""
    return png(side, side, zeros((8 * side + 1) * side), depth=16, colour=6)


def noise(side: int) -> bytes:
    """Return an ordinary picture."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()
