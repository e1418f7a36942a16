"""The only place that knows HTTP statuses: what an error looks like to a client.

Two choices worth knowing. A picture whose origin fails (``Kind.DEPENDENCY``) is a 502, not a 424: it may succeed when
tried again, and OpenAI's clients try 5xx again but not 424. A 5xx that would only fail again says so in
``x-should-retry``, which those clients obey.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, TypeVar, cast

import msgspec

from foveate.core.errors import FoveateError, Kind

STATUS: Final[dict[Kind, int]] = {
    Kind.INVALID: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.NOT_ALLOWED: 405,
    Kind.CONFLICT: 409,
    Kind.TOO_LARGE: 413,
    Kind.UNSUPPORTED_MEDIA: 415,
    Kind.UNDECODABLE: 422,
    Kind.RATE: 429,
    Kind.INTERNAL: 500,
    Kind.DEPENDENCY: 502,
    Kind.UNAVAILABLE: 503,
    Kind.TIMEOUT: 504,
}

_TYPE: Final[dict[Kind, str]] = {
    Kind.UNAUTHENTICATED: "authentication_error",
    Kind.FORBIDDEN: "permission_error",
    Kind.RATE: "overloaded_error",
    Kind.UNAVAILABLE: "overloaded_error",
    Kind.DEPENDENCY: "upstream_error",
    Kind.TIMEOUT: "timeout_error",
    Kind.INTERNAL: "server_error",
}
"""OpenAI's ``type``; every kind that is not here is the client's doing: ``invalid_request_error``."""

Part = TypeVar("Part", int, int | None)

_CONTENT_PART: Final = re.compile(r"messages\[\d+\]\.content\[(\d+)\]")
_RETRY_AFTER_SECONDS: Final = 1.0


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong. ``status`` repeats the HTTP status, for an error within a stream or an estimate, which has none of its own;
    ``retryable`` tells whether the same request may succeed later, ``retry_after_seconds`` repeats ``Retry-After``.

    The others are additions to OpenAI's shape too, present only when they are known: ``part`` is the index of the offending content part
    in its message, ``limit_name`` the limit that was exceeded (a field of ``/v1/budget``, or a setting), ``limit`` its value and
    ``actual`` what the request has. ``upstream`` is the error object of the server behind this one, as it came.
    """

    message: str
    type: str
    param: str | None
    code: str
    status: int
    retryable: bool
    retry_after_seconds: int | msgspec.UnsetType = msgspec.UNSET
    part: int | msgspec.UnsetType = msgspec.UNSET
    limit_name: str | msgspec.UnsetType = msgspec.UNSET
    limit: float | msgspec.UnsetType = msgspec.UNSET
    actual: float | msgspec.UnsetType = msgspec.UNSET
    upstream: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ErrorReply(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorBody


def status(error: FoveateError) -> int:
    """Return the HTTP status."""
    return STATUS[error.kind]


def told(error: FoveateError) -> ErrorBody:
    """Return what a client is told."""
    part = part_of(error.param, error.part)
    later = retry_after_seconds(error)
    return ErrorBody(
        message=error.public,
        type=_TYPE.get(error.kind, "invalid_request_error"),
        param=error.param,
        code=error.code,
        status=status(error),
        retryable=error.retryable,
        retry_after_seconds=msgspec.UNSET if later is None else later,
        part=msgspec.UNSET if part is None else part,
        limit_name=msgspec.UNSET if error.limit_name is None else error.limit_name,
        limit=msgspec.UNSET if error.limit is None else error.limit,
        actual=msgspec.UNSET if error.actual is None else error.actual,
        # Raw JSON stands for the value that it encodes.
        upstream=cast("dict[str, Any]", msgspec.Raw(error.answer)) if error.answer else msgspec.UNSET,
    )


def body(error: FoveateError) -> bytes:
    """Return the JSON body."""
    return msgspec.json.encode(ErrorReply(told(error)))


def part_of(param: str | None, part: Part) -> int | Part:
    """Return the index of a content part in its message. ``param`` knows it best: to the journey it is the request's nth medium."""
    place = _CONTENT_PART.match(param or "")
    return part if place is None else int(place.group(1))


def retry_after_seconds(error: FoveateError) -> int | None:
    """Return in how many seconds to try again, where that is known; every full house and every stop says something."""
    if error.kind not in (Kind.RATE, Kind.UNAVAILABLE) and error.retry_after_seconds is None:
        return None
    seconds = _RETRY_AFTER_SECONDS if error.retry_after_seconds is None else error.retry_after_seconds
    return max(1, math.ceil(seconds))


def headers(error: FoveateError) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell a client whether and when to try again, and how to say who it is."""
    later = retry_after_seconds(error)
    if later is not None:
        return [(b"retry-after", b"%d" % later)]
    if error.kind is Kind.UNAUTHENTICATED:
        return [(b"www-authenticate", b"Bearer")]
    if STATUS[error.kind] >= 500 and not error.retryable:
        return [(b"x-should-retry", b"false")]
    return []
