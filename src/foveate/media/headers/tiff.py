"""TIFF's first directory, which is also what an EXIF block is. Source: TIFF 6.0, section 2; EXIF 2.32, tag 0x0112."""

from __future__ import annotations

import struct
from typing import Final

from foveate.core.errors import MediaUnsupported
from foveate.core.media import ImageHeader
from foveate.media.headers.shape import displayed

WIDTH: Final = 256
LENGTH: Final = 257
ORIENTATION: Final = 274
ENTRIES_MAX: Final = 1024
_NUMBER_FORMATS: Final = {1: "B", 3: "H", 4: "I"}


def read_tiff(data: memoryview) -> ImageHeader:
    """Read the first page. Raises MediaUnsupported for BigTIFF."""
    if data[2] == 43 or data[3] == 43:
        raise MediaUnsupported("BigTIFF pictures are not supported; send an ordinary TIFF.")
    tags = first_directory(data)
    return displayed("tiff", tags.get(WIDTH, 0), tags.get(LENGTH, 0), orientation=_valid(tags.get(ORIENTATION, 1)))


def orientation_of(exif: memoryview) -> int:
    """Return the orientation (1 to 8) in an EXIF block, with or without its ``Exif`` prefix; 1 when it is absent or
    damaged.
    """
    if bytes(exif[:6]) == b"Exif\0\0":
        exif = exif[6:]
    try:
        return _valid(first_directory(exif).get(ORIENTATION, 1))
    except (ValueError, IndexError, struct.error):
        return 1


def first_directory(data: memoryview) -> dict[int, int]:
    """Return the first directory's numeric tags (the first value of each). Raises ValueError, struct.error."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(data[:2]))
    if order is None:
        raise ValueError("no byte order mark")
    (magic, start) = struct.unpack_from(order + "HI", data, 2)
    (count,) = struct.unpack_from(order + "H", data, start)
    if magic != 42 or count > ENTRIES_MAX:
        raise ValueError("not a directory")
    tags: dict[int, int] = {}
    for index in range(count):
        at = start + 2 + 12 * index
        tag, kind, values = struct.unpack_from(order + "HHI", data, at)
        number = _NUMBER_FORMATS.get(kind)
        if number is not None and values == 1:
            (tags[tag],) = struct.unpack_from(order + number, data, at + 8)
    return tags


def _valid(orientation: int) -> int:
    return orientation if 1 <= orientation <= 8 else 1
