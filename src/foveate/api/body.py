"""Receives a request's body without ever holding up the event loop.

A small body is collected here and parsed whole. A large one goes chunk by chunk into the shared-memory arena, where a
media worker takes its inline pictures out; only the rest, the skeleton, is parsed here. Both are bounded: the body by
the service's limit, the skeleton by what parses within the loop's budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Final

import msgspec

from foveate.api.structure import check_structure
from foveate.api.wire import Wire
from foveate.core.budget import Caller
from foveate.core.clock import now
from foveate.core.errors import BodyTooLarge, DeadlineExceeded, InvalidParameter, MediaUnsupported
from foveate.core.limits import SKELETON_BYTES_MAX, SKELETON_LIMIT
from foveate.journey.port import BodyBuffer, Service, Unpacked

_LIMIT: Final = "server.body_bytes_max"
_LONG_BYTES: Final = 64 * 1024


class Body(msgspec.Struct, frozen=True):
    """A received body: the JSON to parse, the pictures taken out of it (None: it was small), and when its last byte had
    arrived.
    """

    json: bytes
    unpacked: Unpacked | None
    received_at: float


class Received(msgspec.Struct, frozen=True):
    """A body that has arrived: whole in memory, or in a buffer of the arena."""

    at: float
    json: bytes = b""
    buffer: BodyBuffer | None = None


class BodyReader:
    """Reads one request's body. ``held`` owns what the body holds in the arena: its pictures live until ``held`` is
    closed. ``on_large`` is called when the body turns out to be large, before room is taken for it, and may refuse it.
    """

    def __init__(
        self, service: Service, wire: Wire, caller: Caller, *, seconds_max: float, on_large: Callable[[], None]
    ) -> None:
        self._service = service
        self._caller = caller
        self._wire = wire
        self._seconds_max = seconds_max
        self._on_large = on_large

    async def receive(self, held: AsyncExitStack) -> Received:
        """Wait for the last byte. The buffer, if there is one, is closed with ``held``.

        Raises MediaUnsupported (not JSON by its headers), BodyTooLarge, DeadlineExceeded, ArenaFull, ClientGone.
        """
        self._check_type()
        length = self._length()
        if length is not None and length > self._service.body_bytes_max:
            raise self._too_large(length)
        try:
            async with asyncio.timeout(self._seconds_max), aclosing(self._wire.chunks()) as chunks:
                return await self._collect(chunks, length, held)
        except TimeoutError:
            raise DeadlineExceeded("The request body did not arrive in time.", limit=self._seconds_max) from None

    async def unpack(self, received: Received, held: AsyncExitStack) -> Body:
        """Take the inline pictures out of a body that lies in the arena; they live until ``held`` is closed.

        Raises InvalidParameter, MediaWorkersUnavailable, BodyTooLarge.
        """
        if received.buffer is None:
            return await self._checked(Body(received.json, None, received.at))
        unpacked = await held.enter_async_context(self._service.unpack(received.buffer))
        size = len(unpacked.skeleton)
        if size > SKELETON_BYTES_MAX:
            raise BodyTooLarge(
                f"Besides its pictures the request body has {size} bytes; at most {SKELETON_BYTES_MAX} may be.",
                limit_name=SKELETON_LIMIT,
                limit=SKELETON_BYTES_MAX,
                actual=size,
            )
        return await self._checked(Body(unpacked.skeleton, unpacked, received.at))

    async def _checked(self, body: Body) -> Body:
        """Bound the work of parsing. Others get their turn between counting a long text and parsing it."""
        check_structure(body.json)
        if len(body.json) > _LONG_BYTES:
            await asyncio.sleep(0)
        return body

    def _check_type(self) -> None:
        """Only JSON: a browser page may post a form or plain text to a local server without asking it first, but not
        JSON.
        """
        media_type = self._wire.header(b"content-type").partition(b";")[0].strip().lower()
        if media_type not in (b"", b"application/json"):
            raise MediaUnsupported("The body should be JSON: send the header content-type: application/json.")
        if self._wire.header(b"content-encoding").strip().lower() not in (b"", b"identity"):
            raise MediaUnsupported("The body should not be compressed.")

    def _length(self) -> int | None:
        text = self._wire.header(b"content-length")
        return int(text) if text.isdigit() and len(text) < 19 else None

    def _too_large(self, actual: int) -> BodyTooLarge:
        limit = self._service.body_bytes_max
        sentence = f"The request body is larger than the {limit} bytes this server accepts."
        return BodyTooLarge(sentence, limit_name=_LIMIT, limit=limit, actual=actual)

    async def _collect(self, chunks: AsyncGenerator[bytes, None], length: int | None, held: AsyncExitStack) -> Received:
        small: list[bytes] = []
        buffer: BodyBuffer | None = None
        size = 0
        if length is not None and length >= self._service.inline_bytes_min:
            self._on_large()
            buffer = await held.enter_async_context(self._service.body(length, self._caller))
        async for chunk in chunks:
            size += len(chunk)
            if size > self._service.body_bytes_max:
                raise self._too_large(size)
            if buffer is None and size >= self._service.inline_bytes_min:
                # No length was announced: room for the most that may come.
                self._on_large()
                buffer = await held.enter_async_context(self._service.body(self._service.body_bytes_max, self._caller))
                for earlier in small:
                    buffer.write(earlier)
                small.clear()
            if buffer is None:
                small.append(chunk)
            elif chunk:
                buffer.write(chunk)
        if size == 0:
            raise InvalidParameter("The request has no body.")
        return Received(now(), b"".join(small), buffer)
