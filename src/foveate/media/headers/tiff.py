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
COMPRESSION: Final = 259
COMPRESSIONS: Final = frozenset({1, 2, 3, 4, 5, 7, 8, 32773, 32946})
"""None, CCITT (fax), LZW, JPEG, Deflate (both numbers), PackBits. Not old JPEG, ZSTD, LZMA, WebP, LERC, JBIG and the rest."""

ENTRIES_MAX: Final = 1024
PIECES_MAX: Final = 1 << 18
"""Strips or tiles of a picture: 64 million pixels in tiles of 16x16. Each costs its decoder a list entry and a call."""

_PIECES: Final = frozenset({273, 279, 324, 325})
"""Tags with a value for each strip or tile: where they are and how long."""

_VALUE_BYTES: Final = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_NUMBER_FORMATS: Final = {1: "B", 3: "H", 4: "I"}


def read_tiff(data: memoryview) -> ImageHeader:
    """Read the first page. Raises MediaUnsupported for BigTIFF and for compressions whose decoders few pictures need."""
    if data[2] == 43 or data[3] == 43:
        raise MediaUnsupported("BigTIFF pictures are not supported; send an ordinary TIFF.")
    tags = first_directory(data, bounded=True)
    if tags.get(COMPRESSION, 1) not in COMPRESSIONS:
        raise MediaUnsupported(
            "The TIFF picture is compressed in a way that is not accepted; send it uncompressed, or with LZW or Deflate.",
            detail=f"compression {tags[COMPRESSION]}",
        )
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


def first_directory(data: memoryview, *, bounded: bool = False) -> dict[int, int]:
    """Return the first directory's numeric tags that have one value. Raises ValueError, struct.error.

    ``bounded`` also refuses a directory that would cost its decoder more than the file is long: Pillow reads the values of every
    tag, and nothing keeps a thousand tags from naming the same megabytes.
    """
    order = {b"II": "<", b"MM": ">"}.get(bytes(data[:2]))
    if order is None:
        raise ValueError("no byte order mark")
    (magic, start) = struct.unpack_from(order + "HI", data, 2)
    (count,) = struct.unpack_from(order + "H", data, start)
    if magic != 42 or count > ENTRIES_MAX:
        raise ValueError("not a directory")
    tags: dict[int, int] = {}
    total = 0
    for index in range(count):
        at = start + 2 + 12 * index
        tag, kind, values = struct.unpack_from(order + "HHI", data, at)
        total += values * _VALUE_BYTES.get(kind, 0)
        if bounded and (total > len(data) or (tag in _PIECES and values > PIECES_MAX)):
            raise ValueError("more values than a picture needs")
        number = _NUMBER_FORMATS.get(kind)
        if number is not None and values == 1:
            (tags[tag],) = struct.unpack_from(order + number, data, at + 8)
    return tags


def _valid(orientation: int) -> int:
    return orientation if 1 <= orientation <= 8 else 1
