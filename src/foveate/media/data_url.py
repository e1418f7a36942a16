"""``data:`` URLs (RFC 2397) to bytes.

What is accepted beyond the plain form: any media type and parameters (the bytes decide what the picture is, not what
the client calls it), any capitals in the scheme and the marker, line breaks in the payload, missing padding, the
URL-safe alphabet and a percent-encoded payload. What cannot be decoded without doubt is refused: nothing is ever
skipped or guessed. ``data:video/jpeg;base64,<frame>,<frame>,...`` is a list of JPEG frames, as vLLM's clients send them;
it becomes one piece of media (:mod:`foveate.media.frame_list`).
"""

from __future__ import annotations

import binascii
import re
from typing import Final

import numpy as np
import pybase64

from foveate.core.errors import DataUrlInvalid
from foveate.media.frame_list import FRAMES_WALKED_MAX, joined

HEADER_CHARACTERS_MAX: Final = 1024
"""The media type and its parameters end, with a comma, within this many characters."""

FRAMES_KIND: Final = "video/jpeg"
FRAME_BYTES_MIN: Final = 16

_RAW_BASE64: Final = re.compile(r"[A-Za-z0-9+/_\-\s]{16,64}=*\s*")
_INNER_SPACE: Final = re.compile(rb"[^ \t\r\n][ \t]+[^ \t\r\n]")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_NO_DIGIT: Final = 255
_HEX_VALUES: Final = np.full(256, _NO_DIGIT, np.uint8)
_HEX_VALUES[list(b"0123456789abcdef")] = range(16)
_HEX_VALUES[list(b"ABCDEF")] = range(10, 16)


def is_data_url(text: str) -> bool:
    """Tell whether ``text`` has the ``data:`` scheme, in whatever capitals and after whatever white space."""
    return text[:64].lstrip()[:5].lower() == "data:"


def decode_data_url(text: str) -> bytes:
    """Return the bytes of a base64 ``data:`` URL. Raises DataUrlInvalid with a sentence that says what is wrong."""
    kind, payload = _parts(text)
    if kind == FRAMES_KIND:
        count = payload.count(",") + 1
        if count > FRAMES_WALKED_MAX:
            raise DataUrlInvalid(
                f"The data URL is a list of {count} frames; at most {FRAMES_WALKED_MAX} may be sent.",
                limit=FRAMES_WALKED_MAX,
                actual=count,
                limit_name="frame_list",
            )
        return joined(_frame(piece) for piece in payload.split(","))
    decoded = _decode(payload)
    if not decoded:
        raise DataUrlInvalid("The data URL is empty.")
    return decoded


def decode_data_url_into(text: str, out: memoryview) -> int:
    """Decode into the start of ``out`` and return the number of bytes written.

    Raises DataUrlInvalid, and ValueError when ``out`` is too small (as much as the text has always suffices).
    """
    decoded = decode_data_url(text)
    if len(decoded) > len(out):
        raise ValueError(f"{len(decoded)} bytes do not fit into {len(out)}")
    # pybase64 cannot decode into a given buffer; the copy costs a tenth of the decoding.
    out[: len(decoded)] = decoded
    return len(decoded)


def _frame(payload: str) -> bytes:
    decoded = _decode(payload)
    # No JPEG is as short, and a list of shorter ones could be larger than its base64 was.
    if len(decoded) < FRAME_BYTES_MIN:
        raise DataUrlInvalid("A frame in the data URL's list of frames is empty or too short to be a picture.")
    return decoded


def _decode(payload: str) -> bytes:
    try:
        return pybase64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        return _decode_repaired(payload)


def _parts(text: str) -> tuple[str, str]:
    """Return the media type, in small letters, and the payload."""
    if not is_data_url(text):
        if _RAW_BASE64.fullmatch(text[:64]):
            raise DataUrlInvalid("This looks like bare base64; put data:image/...;base64, before it.")
        raise DataUrlInvalid("This is not a data URL; write data:image/...;base64,...")
    start = text.index(":") + 1
    comma = text.find(",", start, start + HEADER_CHARACTERS_MAX)
    if comma < 0:
        raise DataUrlInvalid("The data URL has no comma before its payload.")
    kind, *parameters = text[start:comma].split(";")
    if not any(parameter.strip().lower() == "base64" for parameter in parameters):
        raise DataUrlInvalid("Only base64 data URLs are supported; write data:image/...;base64,...")
    if is_data_url(text[comma + 1 : comma + 65]):
        raise DataUrlInvalid("The data URL has its prefix twice.")
    return kind.strip().lower(), text[comma + 1 :]


def _decode_repaired(payload: str) -> bytes:
    """Decode what the strict decoder refused, if what it means is certain."""
    if not payload.isascii():
        raise DataUrlInvalid("The data URL's payload is not base64.")
    data = payload.encode("ascii")
    if b"%" in data:
        data = _unescaped(data)
    # Only line breaks (with their indentation) and outer spaces are dropped: a lone space inside may be a + that a
    # form decoder replaced. Both steps look at each byte once, whatever the text: a pattern that finds a line break with
    # the spaces before it would start anew at every space.
    data = data.strip()
    if _INNER_SPACE.search(data):
        raise DataUrlInvalid("The data URL's payload holds characters that are not base64.")
    data = data.translate(_URL_SAFE, b" \t\r\n")
    body = data.rstrip(b"=")
    if len(data) - len(body) > 2:
        raise DataUrlInvalid("The data URL's base64 has too much padding.")
    if len(body) % 4 == 1:
        raise DataUrlInvalid("The data URL's base64 is incomplete: its length cannot be right.")
    try:
        return pybase64.b64decode(body + b"=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise DataUrlInvalid("The data URL's payload holds characters that are not base64.") from None


def _unescaped(data: bytes) -> bytes:
    """Return ``data`` percent-decoded: as a whole, since the standard library takes a microsecond for each escape."""
    codes = np.frombuffer(data + b"  ", np.uint8).copy()
    places = np.flatnonzero(codes == ord("%"))
    high, low = _HEX_VALUES[codes[places + 1]], _HEX_VALUES[codes[places + 2]]
    if _NO_DIGIT in high or _NO_DIGIT in low:
        raise DataUrlInvalid("The data URL's payload has a % that is not followed by two hexadecimal digits.")
    codes[places] = high * 16 + low
    kept = np.ones(len(codes), bool)
    kept[places + 1] = kept[places + 2] = kept[len(data) :] = False
    return codes[kept].tobytes()
