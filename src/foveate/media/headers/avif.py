"""AVIF: size, rotation and mirroring of the primary item, and the length of a sequence.

Sources: ISO/IEC 14496-12 and 23008-12 (HEIF), AVIF 1.1.

EXIF orientation inside an AVIF is ignored, as HEIF demands: ``irot`` and ``imir`` say how the picture is displayed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from foveate.core.media import ImageHeader
from foveate.media.headers.shape import displayed

BOXES_MAX: Final = 512
_SEQUENCE: Final = b"avis"

_ORIENTATION: Final[dict[tuple[int, int | None], int]] = {
    (0, None): 1, (1, None): 8, (2, None): 3, (3, None): 6,
    (0, 0): 4, (1, 0): 5, (2, 0): 2, (3, 0): 7,
    (0, 1): 2, (1, 1): 7, (2, 1): 4, (3, 1): 5,
}  # fmt: skip
"""EXIF orientation for quarter turns anticlockwise, followed by a flip (0: top and bottom change places, 1: left and
right).
"""


def read_avif(data: memoryview) -> ImageHeader:
    """Read the properties of the primary item. Raises ValueError when there is none."""
    meta = _child(data, b"meta")[4:]  # a full box: version and flags first
    primary = _primary_item(_child(meta, b"pitm"))
    properties_box = _child(meta, b"iprp")
    properties = list(_boxes(_child(properties_box, b"ipco")))
    size, turns, axis = (0, 0), 0, None
    for index in _associations(_child(properties_box, b"ipma"), primary):
        if not 1 <= index <= len(properties):
            continue
        kind, content = properties[index - 1]
        if kind == b"ispe":
            size = struct.unpack_from(">II", content, 4)
        elif kind == b"irot":
            turns = content[0] & 3
        elif kind == b"imir":
            axis = content[0] & 1
    frames = _samples(data) if _SEQUENCE in brands(data) else 1
    return displayed("avif", *size, orientation=_ORIENTATION[turns, axis], frames=frames)


def _samples(data: memoryview) -> int:
    """Return the number of samples in the longest track; 1 when there is no readable one (the primary item is shown then)."""
    found = 1
    try:
        for kind, track in _boxes(_child(data, b"moov")):
            if kind == b"trak":
                table = _child(_child(_child(track, b"mdia"), b"minf"), b"stbl")
                found = max(found, int(struct.unpack_from(">I", _child(table, b"stsz"), 8)[0]))
    except (ValueError, struct.error):
        return found
    return found


def brands(data: memoryview) -> list[bytes]:
    """Return the file type box's major brand and compatible brands."""
    (length,) = struct.unpack_from(">I", data, 0)
    body = bytes(data[8 : min(max(length, 16), 256)])
    return [body[at : at + 4] for at in range(0, len(body) - 3, 4) if at != 4]


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    at = 0
    for _ in range(BOXES_MAX):
        if at + 8 > len(data):
            return
        length, kind = struct.unpack_from(">I4s", data, at)
        start = at + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, start)
            start += 8
        elif length == 0:
            length = len(data) - at
        if length < start - at:
            raise ValueError("a box shorter than its header")
        yield kind, data[start : at + length]
        at += length
    raise ValueError("too many boxes")


def end_of_boxes(data: memoryview) -> int:
    """Return where the last top-level box ends by its own account; beyond the data when they are truncated."""
    at = 0
    for _ in range(BOXES_MAX):
        if at + 16 > len(data):
            return at
        length, _, long = struct.unpack_from(">I4sQ", data, at)
        if length == 0:
            return len(data)
        at += max(long if length == 1 else length, 8)
    raise ValueError("too many boxes")


def _child(data: memoryview, wanted: bytes) -> memoryview:
    for kind, content in _boxes(data):
        if kind == wanted:
            return content
    raise ValueError(f"no {wanted!r} box")


def _primary_item(content: memoryview) -> int:
    return int(struct.unpack_from(">H" if content[0] == 0 else ">I", content, 4)[0])


def _associations(content: memoryview, item: int) -> list[int]:
    """Return the 1-based property indices of ``item``."""
    version, wide = content[0], bool(content[3] & 1)
    (entries,) = struct.unpack_from(">I", content, 4)
    at = 8
    for _ in range(min(entries, BOXES_MAX)):
        (item_id,) = struct.unpack_from(">H" if version < 1 else ">I", content, at)
        at += 2 if version < 1 else 4
        count = content[at]
        at += 1
        if item_id == item:
            return [_index(content, at, place, wide) for place in range(count)]
        at += count * (2 if wide else 1)
    raise ValueError("the primary item has no properties")


def _index(content: memoryview, start: int, place: int, wide: bool) -> int:
    if wide:
        return int(struct.unpack_from(">H", content, start + 2 * place)[0]) & 0x7FFF
    return content[start + place] & 0x7F
