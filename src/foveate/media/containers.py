"""What of a container its decoder is given: no metadata that only costs, the ICC profile, and zeros where data are missing.

Runs in a media worker, over data that were probed. Sources: W3C PNG, section 5; ICC.1, annex B.4 (JPEG); the WebP container
specification; ISO/IEC 14496-12 (AVIF).
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from foveate.core.errors import MediaUndecodable
from foveate.media.colour import PROFILE_BYTES_MAX
from foveate.media.headers.avif import end_of_boxes
from foveate.media.headers.jpeg import segments_before_scan

MISSING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Zeros that are put behind truncated data at most: a header may claim any length."""

_PNG_SIGNATURE_BYTES: Final = 8
_PNG_FRAME_BYTES: Final = 12
_NEEDED_ANCILLARY: Final = b"tRNS"
_APP2: Final = 0xE2
_ICC_MARK: Final = b"ICC_PROFILE\0"
_WEBP_CHUNKS_AT: Final = 30
_WEBP_HAS_PROFILE: Final = 0x20


def png_essentials(data: memoryview) -> tuple[bytes, bytes | None]:
    """Return a PNG without ancillary chunks other than tRNS, and its compressed ICC profile chunk's content.

    Pillow inflates text and profiles when it opens a file, and refuses the whole picture when one is large; neither changes
    a pixel. An animation loses its frames and keeps the picture that every viewer shows.
    """
    kept = [data[:_PNG_SIGNATURE_BYTES]]
    profile: bytes | None = None
    at = start = _PNG_SIGNATURE_BYTES
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + _PNG_FRAME_BYTES + length
        if kind.isalpha() and kind[:1].islower() and kind != _NEEDED_ANCILLARY:
            kept.append(data[start:at])
            start = min(end, len(data))
            if kind == b"iCCP" and profile is None and length <= PROFILE_BYTES_MAX:
                profile = bytes(data[at + 8 : at + 8 + length])
        at = end
    kept.append(data[start:])
    return b"".join(kept), profile


def inflated_profile(content: bytes | None) -> bytes | None:
    """Return the profile in an iCCP chunk's content, or None when it is damaged or larger than profiles are."""
    if content is None:
        return None
    _, _, packed = content.partition(b"\0")
    inflater = zlib.decompressobj()
    try:
        profile = inflater.decompress(packed[1:], PROFILE_BYTES_MAX)
    except zlib.error:
        return None
    return profile if inflater.eof else None


def jpeg_profile(data: memoryview) -> bytes | None:
    """Return the profile that a JPEG's APP2 segments hold, or None when there is none or a piece is missing."""
    pieces: dict[int, bytes] = {}
    count = 0
    for marker, start, end in segments_before_scan(data):
        if marker == _APP2 and bytes(data[start : start + 12]) == _ICC_MARK and end - start > 14:
            count = data[start + 13]
            pieces.setdefault(data[start + 12], bytes(data[start + 14 : end]))
    if not pieces or sorted(pieces) != list(range(1, count + 1)):
        return None
    return b"".join(pieces[number] for number in sorted(pieces))


def jpeg_without_profile(data: memoryview) -> bytes:
    """Return a JPEG without its profile's segments: libjpeg-turbo counts a profile that does not fit together as damage of the picture."""
    kept, copied = [], 0
    for marker, start, end in segments_before_scan(data):
        if marker == _APP2 and bytes(data[start : start + 12]) == _ICC_MARK:
            kept.append(data[copied : start - 4])
            copied = end
    kept.append(data[copied:])
    return b"".join(kept)


def webp_profile(data: memoryview) -> bytes | None:
    """Return the profile of an extended WebP, whose first chunk it is."""
    if bytes(data[12:16]) != b"VP8X" or not data[20] & _WEBP_HAS_PROFILE:
        return None
    kind, length = struct.unpack_from("<4sI", data, _WEBP_CHUNKS_AT)
    if kind != b"ICCP" or length > PROFILE_BYTES_MAX:
        return None
    return bytes(data[_WEBP_CHUNKS_AT + 8 : _WEBP_CHUNKS_AT + 8 + length])


def completed(data: memoryview, name: str) -> memoryview:
    """Return truncated data of a WebP or AVIF with zeros up to the length that the container claims; others as they are.

    Their decoders refuse short data outright, but decode zeros to something bland. Raises MediaUndecodable when more than
    :data:`MISSING_BYTES_MAX` are missing.
    """
    if name == "webp":
        claimed = 8 + int(struct.unpack_from("<I", data, 4)[0])
    elif name == "avif":
        claimed = end_of_boxes(data)
    else:
        return data
    missing = claimed - len(data)
    if missing <= 0:
        return data
    if missing > MISSING_BYTES_MAX:
        raise MediaUndecodable(detail=f"{name}: {missing} bytes are missing")
    return memoryview(bytes(data) + bytes(missing))
