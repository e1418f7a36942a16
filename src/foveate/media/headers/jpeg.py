"""JPEG: markers up to the first scan. Source: ITU-T T.81, annex B; EXIF 2.32, section 4.7."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from foveate.core.media import ImageHeader
from foveate.media.headers.shape import displayed
from foveate.media.headers.tiff import orientation_of

SEGMENTS_MAX: Final = 1024
GARBAGE_BYTES_MAX: Final = 256
"""Bytes between two segments that are skipped, and fill bytes before a marker."""

_FRAME_MARKERS: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH: Final = frozenset({0x01, *range(0xD0, 0xD8)})
_START_OF_IMAGE: Final = 0xD8
_START_OF_SCAN: Final = 0xDA
_END_OF_IMAGE: Final = 0xD9
_STEERING: Final = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
"""A marker that neither stands for a byte of picture data nor only parts them (restart markers, and codes that decoders pass over)."""
_APP1: Final = 0xE1


def read_jpeg(data: memoryview) -> ImageHeader:
    """Read the frame header and, from the segments before the first scan, the EXIF orientation."""
    size: tuple[int, int] | None = None
    orientation: int | None = None
    at = 2
    for _ in range(SEGMENTS_MAX):
        marker, at = _next_marker(data, at)
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            break
        if marker in _WITHOUT_LENGTH:
            continue
        (length,) = struct.unpack_from(">H", data, at)
        if length < 2 or at + length > len(data):
            raise ValueError("a segment ends beyond the file")
        if marker in _FRAME_MARKERS and size is None:
            _, height, width = struct.unpack_from(">BHH", data, at + 2)
            size = (width, height)
        elif marker == _APP1 and orientation is None and bytes(data[at + 2 : at + 8]) == b"Exif\0\0":
            orientation = orientation_of(data[at + 2 : at + length])
        at += length
    if size is None:
        raise ValueError("no frame header before the first scan")
    return displayed("jpeg", *size, orientation=orientation or 1)


def scans(data: bytes | memoryview) -> tuple[int, bool]:
    """Return how many scans a decoder comes upon, and whether the picture has its end marker.

    Goes from marker to marker as libjpeg-turbo does: an end marker inside a segment ends nothing, and a scan inside one is none.
    Where libjpeg-turbo would give up, this goes on, so that it counts rather too many. Takes time that grows with the length alone.
    """
    count, at = 0, 2
    while (found := _STEERING.search(data, at)) is not None:
        marker, at = data[found.end() - 1], found.end()
        if marker == _END_OF_IMAGE:
            return count, True
        count += marker == _START_OF_SCAN
        if marker != _START_OF_IMAGE:
            if at + 2 > len(data):
                break
            at += max(int.from_bytes(data[at : at + 2], "big"), 2)
    return count, False


def segments_before_scan(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and end of the content of each segment before the first scan.

    Raises ValueError, IndexError, struct.error.
    """
    at = 2
    for _ in range(SEGMENTS_MAX):
        marker, at = _next_marker(data, at)
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            return
        if marker not in _WITHOUT_LENGTH:
            (length,) = struct.unpack_from(">H", data, at)
            yield marker, at + 2, at + length
            at += length


def _next_marker(data: memoryview, at: int) -> tuple[int, int]:
    """Return the next marker's code and the place behind it; bytes that are no marker are skipped, as libjpeg does."""
    if data[at] == 0xFF and data[at + 1] != 0xFF:
        return data[at + 1], at + 2
    if data[at] != 0xFF:
        at += bytes(data[at : at + GARBAGE_BYTES_MAX]).index(b"\xff")
    gap = bytes(data[at : at + GARBAGE_BYTES_MAX])
    at += len(gap) - len(gap.lstrip(b"\xff"))
    return data[at], at + 1
