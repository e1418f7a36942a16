"""The small JSON body of an operator's request."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec
from fastapi import Request

from foveate.core.errors import BodyTooLarge, DeadlineExceeded, InvalidParameter

BODY_BYTES_MAX: Final = 64 * 1024
BODY_SECONDS_MAX: Final = 10.0
T = TypeVar("T")


async def small_body(request: Request, type_: type[T]) -> T:
    """Read and check a small body. Raises InvalidParameter, BodyTooLarge, DeadlineExceeded."""
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise BodyTooLarge(f"The body is larger than {BODY_BYTES_MAX} bytes.", limit=BODY_BYTES_MAX)
    except TimeoutError:
        raise DeadlineExceeded("The request body did not arrive in time.", limit=BODY_SECONDS_MAX) from None
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidParameter(f"The body cannot be used: {error}.") from error
