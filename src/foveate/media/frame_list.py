"""A list of JPEG frames as one piece of media: ``data:video/jpeg;base64,<frame>,<frame>,…`` once its base64 is decoded.

A mark, then for each frame its length (four bytes, little-endian) and its bytes. The lengths are kept because a JPEG does not say where it
ends: looking for its end marker would cut frames that hold a thumbnail. Nothing says when the frames were taken.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from foveate.core.errors import MediaUndecodable, TooManyFrames

MARK: Final = b"\xffFoveate frames\n"
_LENGTH: Final = struct.Struct("<I")

FRAMES_WALKED_MAX: Final = 20_000
"""A list is walked on the event loop; this many take about 3 ms. How many of them are looked at, the tier decides."""


def joined(frames: Iterable[bytes]) -> bytes:
    """Return the list as one piece."""
    pieces: list[bytes] = [MARK]
    for frame in frames:
        pieces += (_LENGTH.pack(len(frame)), frame)
    return b"".join(pieces)


def is_frame_list(data: memoryview) -> bool:
    """Tell whether ``data`` is such a list."""
    return bytes(data[: len(MARK)]) == MARK


def frame_places(data: memoryview) -> list[tuple[int, int]]:
    """Return offset and size of every frame.

    Raises MediaUndecodable when the lengths do not add up, or there is no frame, TooManyFrames beyond :data:`FRAMES_WALKED_MAX`.
    """
    found = list(_walk(data))
    if not found:
        raise MediaUndecodable("The list of frames is empty.")
    return found


def _walk(data: memoryview) -> Iterator[tuple[int, int]]:
    at = len(MARK)
    for count in itertools.count(1):
        if at == len(data):
            return
        if count > FRAMES_WALKED_MAX:
            raise TooManyFrames(
                f"The list of frames is longer than {FRAMES_WALKED_MAX} frames.",
                limit=FRAMES_WALKED_MAX,
                actual=count,
                limit_name="frame_list",
            )
        if at + _LENGTH.size > len(data):
            break
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if size == 0 or at + size > len(data):
            break
        yield at, size
        at += size
    raise MediaUndecodable("The list of frames is damaged.")
