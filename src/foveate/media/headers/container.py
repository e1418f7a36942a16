"""Which video container the bytes are, by their first bytes alone: declared types and file names lie.

Only what is named here ever reaches a demuxer, and each under its own name, so that no other demuxer (a playlist's above all) is tried.
Does not cover: what is inside (:mod:`foveate.media.video`).
"""

from __future__ import annotations

from typing import Final

from foveate.core.errors import MediaUndecodable, MediaUnsupported
from foveate.media.frame_list import is_frame_list
from foveate.media.headers.avif import brands
from foveate.media.headers.looks import HEIC_BRANDS, looks_like

CONTAINERS: Final = ("mp4", "matroska", "avi", "gif", "jpeg-list")
"""The names that :attr:`VideoHeader.container` may have."""

VIDEO_FORMATS: Final = ("mp4", "mov", "matroska", "webm", "avi", "gif", "jpeg-list")
"""The same as clients call them."""

ACCEPTED_TEXT: Final = (
    "MP4 and MOV, Matroska and WebM, AVI, animated GIF, and data:video/jpeg;base64 lists of JPEG frames"
)

_QUICKTIME_ATOMS: Final = frozenset({b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"})
_STILL_BRANDS: Final = HEIC_BRANDS | {b"avif", b"avis"}
_DOCTYPE_WITHIN_BYTES: Final = 64


def video_container(data: memoryview) -> str:
    """Return which of :data:`CONTAINERS` the bytes are. Raises MediaUnsupported for anything else, MediaUndecodable for nothing at all."""
    if len(data) == 0:
        raise MediaUndecodable("The video is empty.")
    found = container_of(data)
    if found is not None:
        return found
    if (still := still_picture(data)) is not None:
        raise MediaUnsupported(f"This is a picture ({still}), not a video; send it as image_url.")
    guess = looks_like(data)
    what = f"The media looks like {guess}, not like" if guess else "The media is not"
    raise MediaUnsupported(f"{what} an accepted video. Accepted: {ACCEPTED_TEXT}.")


def container_of(data: memoryview) -> str | None:
    """Return which of :data:`CONTAINERS` the first bytes announce, or ``None``."""
    head = bytes(data[:16])
    if is_frame_list(data):
        return "jpeg-list"
    if head[4:8] == b"ftyp":
        return None if _STILL_BRANDS.intersection(brands(data)) else "mp4"
    if head[4:8] in _QUICKTIME_ATOMS:
        return "mp4"  # QuickTime from before there was ftyp
    if head.startswith(b"\x1aE\xdf\xa3"):
        start = bytes(data[:_DOCTYPE_WITHIN_BYTES])
        return "matroska" if b"matroska" in start or b"webm" in start else None
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    return "gif" if head.startswith((b"GIF87a", b"GIF89a")) else None


def still_picture(data: memoryview) -> str | None:
    """Return the name of a picture format that the bytes announce, or ``None``."""
    head = bytes(data[:16])
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return "HEIF or AVIF" if head[4:8] == b"ftyp" and _STILL_BRANDS.intersection(brands(data)) else None
