"""What a picture's header says: format, size as displayed, frames, orientation. Pure Python, bounded, no pixel is
decoded.

The format is decided by the bytes alone; declared types and file names lie. Runs on the gateway's event loop: at most
a few milliseconds for the worst of files. Does not cover: whether the pixels behind the header can be decoded
(:mod:`foveate.media.image`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from foveate.core.errors import MediaUndecodable, MediaUnsupported, TooManyFrames
from foveate.core.media import ImageHeader
from foveate.media.headers.avif import brands, read_avif
from foveate.media.headers.container import container_of
from foveate.media.headers.jpeg import read_jpeg
from foveate.media.headers.looks import looks_like
from foveate.media.headers.raster import BMP_HEADER_SIZES, read_bmp, read_gif, read_png, read_webp
from foveate.media.headers.tiff import read_tiff

_READERS: Final[dict[str, Callable[[memoryview], ImageHeader]]] = {
    "jpeg": read_jpeg,
    "png": read_png,
    "webp": read_webp,
    "gif": read_gif,
    "bmp": read_bmp,
    "tiff": read_tiff,
    "avif": read_avif,
}

IMAGE_FORMATS: Final = tuple(_READERS)
"""Accepted formats; the names :attr:`ImageHeader.format` may have."""

_CONTAINERS: Final = {
    "mp4": "MP4 or QuickTime",
    "matroska": "Matroska or WebM",
    "avi": "AVI",
    "jpeg-list": "a list of frames",
}
_DISPLAY_NAMES: Final = {"webp": "WebP"}


class Accepted(msgspec.Struct, frozen=True):
    """Which pictures a server takes, whatever a tier says. ``frames_max``: frames that an animation may announce; one is decoded."""

    formats: tuple[str, ...] = IMAGE_FORMATS
    frames_max: int = 1000


ANY_FORMAT: Final = Accepted()


def probe(data: memoryview, accepted: Accepted = ANY_FORMAT) -> ImageHeader:
    """Read the header of an encoded picture.

    Raises MediaUnsupported when the bytes are no accepted format, MediaUndecodable when they are one but its header is damaged,
    TooManyFrames when it is an animation of too many frames: as many as the header says (PNG, AVIF), or as a walk of bounded
    length comes upon (GIF, WebP); what lies behind its end is not counted, and never decoded either.
    """
    if len(data) == 0:
        raise MediaUndecodable("The picture is empty.")
    name = image_format(data)
    if name is None or name not in accepted.formats:
        raise _unsupported(data, name, accepted.formats)
    try:
        header = _READERS[name](data)
    except (ValueError, IndexError, struct.error) as error:
        detail = str(error)
        raise MediaUndecodable(f"The {shown(name)} picture's header is damaged or incomplete.", detail=detail) from None
    if header.frames > accepted.frames_max:
        raise TooManyFrames(
            f"The animation has {header.frames} frames; at most {accepted.frames_max} may be, although only the first is shown.",
            limit=accepted.frames_max,
            actual=header.frames,
            limit_name="media.animation_frames_max",
        )
    return header


def shown(name: str) -> str:
    """Return a format's name as people write it."""
    return _DISPLAY_NAMES.get(name, name.upper())


def _unsupported(data: memoryview, name: str | None, formats: tuple[str, ...]) -> MediaUnsupported:
    guess = looks_like(data) if name is None else f"{'an' if name == 'avif' else 'a'} {shown(name)} picture"
    container = container_of(data) if name is None else None
    if container is not None:
        what = f"This is a video ({_CONTAINERS[container]}), not a picture; send it as video_url."
    elif guess:
        what = f"The media looks like {guess}, which is not accepted."
    else:
        what = "The media is not an accepted picture."
    return MediaUnsupported(f"{what} Accepted formats: {', '.join(shown(each) for each in formats)}.")


def is_media(data: memoryview) -> bool:
    """Whether the first bytes announce a picture or a video."""
    return image_format(data) is not None or container_of(data) is not None


def image_format(data: memoryview) -> str | None:
    """Return which of :data:`IMAGE_FORMATS` the first bytes announce, or ``None``."""
    head = bytes(data[:18])
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in BMP_HEADER_SIZES:
        return "bmp"
    if head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "tiff"
    if head[4:8] == b"ftyp" and {b"avif", b"avis"}.intersection(brands(data)):
        return "avif"
    return None
