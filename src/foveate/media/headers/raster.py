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

GIF_STEPS_MAX: Final = 16_384
"""Blocks of a GIF that are walked over (about 3 ms): 4 MB of picture data or 2,048 tiny frames. Frames behind them are not counted."""

_STEPS_OF_A_FRAME: Final = 4
"""Reading a frame's place takes as long as stepping over so many blocks."""

_GIF_EXTENSION: Final = 0x21
_GIF_FRAME: Final = 0x2C
_GIF_TRAILER: Final = 0x3B
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
    """Read the screen and the first frame's place, and count the frames that the first :data:`GIF_STEPS_MAX` blocks hold.

    A frame that reaches beyond the screen enlarges it, as in decoders. The file says nowhere how many frames there are.
    """
    width, height, packed = struct.unpack_from("<HHB", data, 6)
    at = 13 + _colour_table_bytes(packed)
    frames, steps = 0, 0
    try:
        while steps < GIF_STEPS_MAX:
            steps += 1
            block = data[at]
            if block == _GIF_TRAILER:
                break
            if block == _GIF_EXTENSION:
                at, steps = _behind_sub_blocks(data, at + 2, steps)
            elif block == _GIF_FRAME:
                left, top, frame_width, frame_height, packed = struct.unpack_from("<HHHHB", data, at + 1)
                if frames == 0:
                    width, height = max(width, left + frame_width), max(height, top + frame_height)
                frames += 1
                at, steps = _behind_sub_blocks(data, at + 11 + _colour_table_bytes(packed), steps + _STEPS_OF_A_FRAME)
            else:
                at += 1  # decoders skip what they do not know
    except (IndexError, struct.error):
        pass  # the file ends here; whether enough of the first frame came is for the decoder to say
    if frames == 0:
        raise ValueError("no frame")
    return displayed("gif", width, height, frames=frames)


def _colour_table_bytes(packed: int) -> int:
    return 3 << (packed & 7) + 1 if packed & 0x80 else 0


def _behind_sub_blocks(data: memoryview, at: int, steps: int) -> tuple[int, int]:
    """Return the place behind the empty block that ends a row of sub-blocks, and the steps taken so far."""
    while steps < GIF_STEPS_MAX and (length := data[at]):
        at += 1 + length
        steps += 1
    return at + 1, steps


def read_bmp(data: memoryview) -> ImageHeader:
    """Read the information header; a negative height means rows from the top and is displayed the same."""
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return displayed("bmp", width, abs(height))
