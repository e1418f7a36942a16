"""A header as displayed."""

from __future__ import annotations

from typing import Final

from foveate.core.media import ImageHeader

SIDEWAYS: Final = frozenset({5, 6, 7, 8})
"""EXIF orientations in which the stored width is the displayed height."""


def displayed(name: str, width: int, height: int, *, orientation: int = 1, frames: int = 1) -> ImageHeader:
    """Build a header from *stored* width and height. Raises ValueError when there is no pixel."""
    if width < 1 or height < 1:
        raise ValueError("a picture without pixels")
    if orientation in SIDEWAYS:
        width, height = height, width
    return ImageHeader(name, width, height, max(frames, 1), orientation)


def stored_size(header: ImageHeader) -> tuple[int, int]:
    """Return width and height as stored in the file, before its orientation is applied."""
    size = (header.width, header.height)
    return size[::-1] if header.orientation in SIDEWAYS else size
