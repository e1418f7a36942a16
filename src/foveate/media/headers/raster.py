"""PNG, WebP, GIF and BMP. Sources: W3C PNG 3rd edition; the WebP container specification and RFC 6386, 9649; GIF89a;
Microsoft's BMP.
"""

from __future__ import annotations

import struct
from typing import Final

from foveate.core.media import ImageHeader
from foveate.media.headers.shape import displayed
from foveate.media.headers.tiff import orientation_of

CHUNKS_MAX: Final = 4096
"""A PNG writer that flushes every 8 KiB needs fewer for 32 MiB; the walk over them takes about 1 ms."""

PNG_BIT_DEPTH_AT: Final = 24
BMP_HEADER_SIZES: Final = frozenset({12, 16, 40, 52, 56, 64, 108, 124})


def read_png(data: memoryview) -> ImageHeader:
    """Read IHDR; then eXIf and acTL, wherever they are among the first chunks."""
    length, kind, width, height = struct.unpack_from(">I4sII", data, 8)
    if kind != b"IHDR" or length != 13 or width > 0x7FFF_FFFF or height > 0x7FFF_FFFF:
        raise ValueError("IHDR is damaged")
    frames, orientation = 1, 0
    at = 8 + 12 + length
    for _ in range(CHUNKS_MAX):
        if at + 8 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"acTL" and length == 8:
            (frames,) = struct.unpack_from(">I", data, at + 8)
        elif kind == b"eXIf" and not orientation:
            orientation = orientation_of(data[at + 8 : at + 8 + length])
        elif kind == b"IEND":
            break
        at += 12 + length
    return displayed("png", width, height, orientation=orientation or 1, frames=frames)


def read_webp(data: memoryview) -> ImageHeader:
    """Read the first chunk (VP8, VP8L or VP8X); for VP8X also the orientation and the number of frames."""
    kind, _ = struct.unpack_from("<4sI", data, 12)
    if kind == b"VP8 ":
        start, width, height = struct.unpack_from("<3sHH", data, 23)
        if start != b"\x9d\x01\x2a":
            raise ValueError("no key frame")
        return displayed("webp", width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", data, 20)
        if signature != 0x2F:
            raise ValueError("no lossless signature")
        return displayed("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind != b"VP8X":
        raise ValueError("unknown first chunk")
    _, width_low, width_high, height_low, height_high = struct.unpack_from("<IHBHB", data, 20)
    frames, orientation = _walk_webp(data)
    width, height = (width_high << 16 | width_low) + 1, (height_high << 16 | height_low) + 1
    return displayed("webp", width, height, orientation=orientation, frames=frames)


def is_animated_webp(data: memoryview) -> bool:
    """Tell whether the header announces an animation, even one of a single frame."""
    return bytes(data[12:16]) == b"VP8X" and bool(data[20] & 2)


def _walk_webp(data: memoryview) -> tuple[int, int]:
    frames, orientation, at = 0, 0, 30
    for _ in range(CHUNKS_MAX):
        if at + 8 > len(data):
            break
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind == b"ANMF":
            frames += 1
        elif kind == b"EXIF" and not orientation:
            orientation = orientation_of(data[at + 8 : at + 8 + length])
        at += 8 + length + (length & 1)
    return frames, orientation or 1


def read_gif(data: memoryview) -> ImageHeader:
    """Read the screen and the first frame's place: a frame that reaches beyond the screen enlarges it, as decoders do.

    A GIF's header does not say how many frames follow; ``frames`` is 1.
    """
    width, height, packed = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << (packed & 7) + 1 if packed & 0x80 else 0)
    in_extension = False
    for _ in range(CHUNKS_MAX):
        byte = data[at]
        if in_extension:  # ``byte`` is the length of a sub-block; an empty one ends the extension
            in_extension = byte > 0
            at += 1 + byte
        elif byte == 0x2C:
            left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, at + 1)
            return displayed("gif", max(width, left + frame_width), max(height, top + frame_height))
        elif byte == 0x3B:
            break
        else:
            in_extension = byte == 0x21
            at += 2 if in_extension else 1
    raise ValueError("no frame")


def read_bmp(data: memoryview) -> ImageHeader:
    """Read the information header; a negative height means rows from the top and is displayed the same."""
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return displayed("bmp", width, abs(height))
