"""A large chat body to a small one: inline pictures out of the JSON and into the arena. Runs in a media worker.

Every string that an ``image_url`` or ``video_url`` member holds, plain or under ``url``, an ``input_video``'s ``data`` and an
``image_embeds`` part's, wherever it is in the document, is looked at, so that whatever shapes the API accepts later none is missed. A
``data:`` URL becomes ``inline:<index>``, and so does bare base64 in the last two. A client that wrote ``inline:`` itself gets an error in
that place: in a skeleton every ``inline:`` of these is ours. Measured on one core: 20 MB with one picture, 55 ms.

Does not cover: whether the body is a valid request; the API validates the skeleton as it would the body.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from blake3 import blake3

from foveate.core.errors import BodyTooLarge, DataUrlInvalid, ErrorRecord, InvalidParameter, UrlRefused
from foveate.core.limits import SCHEME_CHARACTERS_MAX, SKELETON_BYTES_MAX, SKELETON_LIMIT
from foveate.media.data_url import decode_data_url_into, is_data_url

SCHEME: Final = "inline:"

_HOLDERS: Final = (
    ("image_url", "url"),
    ("video_url", "url"),
    ("input_video", "data"),
    ("image_embeds", "image_embeds"),
)
_BARE: Final = ("data", "image_embeds")
"""Members that may be base64 without ``data:`` before it."""


class InlineBlob(msgspec.Struct, frozen=True):
    """One decoded picture in ``out``; ``digest`` is the hexadecimal BLAKE3 hash of its bytes."""

    offset: int
    size: int
    digest: str


class Unpacking(msgspec.Struct, frozen=True):
    """The small body, and for each ``inline:<index>`` in it the picture or what is wrong with it."""

    skeleton: bytes
    blobs: list[InlineBlob | ErrorRecord]


def unpack(body: memoryview, out: memoryview) -> Unpacking:
    """Take the inline pictures out of the JSON text ``body`` and write their bytes to ``out``, one after the other.

    ``out`` of the body's size always suffices. A malformed ``data:`` URL is an entry of the result,
    not an exception. Raises InvalidParameter when the body is not JSON, BodyTooLarge when it is too large even
    without its pictures.
    """
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("The request body is not valid JSON.", detail=type(error).__name__) from None
    blobs: list[InlineBlob | ErrorRecord] = []
    used = 0
    for holder, key in _media_urls(document):
        text = holder[key]
        if key in _BARE and ":" not in text[:SCHEME_CHARACTERS_MAX]:
            text = f"data:;base64,{text}"
        if is_data_url(text):
            blob = _take(text, out, used)
        elif text.lstrip()[: len(SCHEME)].lower() == SCHEME:
            blob = UrlRefused("Media URLs may not use the inline: scheme (rule: scheme).").record()
        else:
            continue
        holder[key] = f"{SCHEME}{len(blobs)}"
        blobs.append(blob)
        if isinstance(blob, InlineBlob):
            used += blob.size
    skeleton = msgspec.json.encode(document)
    if len(skeleton) > SKELETON_BYTES_MAX:
        raise BodyTooLarge(
            f"Besides its pictures the request body has {len(skeleton)} bytes; at most {SKELETON_BYTES_MAX} may be.",
            limit_name=SKELETON_LIMIT,
            limit=SKELETON_BYTES_MAX,
            actual=len(skeleton),
        )
    return Unpacking(skeleton, blobs)


def _take(text: str, out: memoryview, offset: int) -> InlineBlob | ErrorRecord:
    target = out[offset:]
    try:
        size = decode_data_url_into(text, target)
    except DataUrlInvalid as error:
        return error.record()
    return InlineBlob(offset, size, blake3(target[:size]).hexdigest())


def _media_urls(document: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the place of every string that may be media, in document order, without recursion."""
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(reversed(value))
        elif isinstance(value, dict):
            for member, inner in _HOLDERS:
                held = value.get(member)
                # An image_embeds of an image_embeds was yielded with the object that holds it.
                if isinstance(held, str) and (inner == "url" or (inner == member and value.get("type") == member)):
                    yield value, member
                elif isinstance(held, dict) and isinstance(held.get(inner), str):
                    yield held, inner
            pending.extend(reversed(value.values()))
