"""One HTTP exchange as the API uses it: chunks in; a reply, or a stream of frames, out; and word when the client
leaves.

A thin layer over ASGI's ``receive`` and ``send``. It buffers nothing and starts no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from starlette.types import Receive, Scope, Send

Header = tuple[bytes, bytes]

_DRAIN_BYTES_MAX: Final = 256 * 1024 * 1024
_DRAIN_SECONDS_MAX: Final = 2.0
_ECHO_CHARACTERS_MAX: Final = 128


class ClientGone(Exception):
    """The client closed its connection; there is nobody left to answer."""


class Wire:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, id: str) -> None:
        self._receive = receive
        self._send = send
        self._all_headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        self._headers: dict[bytes, bytes] = dict(self._all_headers)
        self._id = id
        self._body_complete = False
        self.started = False
        """Whether the response's status has been sent."""
        self.streaming = False
        """Whether the response is a stream of events."""
        self.finished = False
        """Whether nothing more can be said: the response is complete, or the client has left."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """All request headers in the order of arrival, with lower-case names."""
        return self._all_headers

    def header(self, name: bytes) -> bytes:
        """Return a request header (lower-case name), empty if absent."""
        return self._headers.get(name, b"")

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raises ClientGone."""
        while not self._body_complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            self._body_complete = not message.get("more_body", False)
            yield message.get("body", b"")

    async def watch(self) -> None:
        """Raise ClientGone when the client leaves; return when the response is complete. Only after the whole body was
        read.
        """
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.finished:
            raise ClientGone

    async def reply(self, status: int, body: bytes, headers: Sequence[Header] = ()) -> None:
        """Send a whole JSON response."""
        length = (b"content-length", b"%d" % len(body))
        if self._body_complete:
            await self._start(status, [(b"content-type", b"application/json"), length, *headers])
            self.finished = True
            await self._send({"type": "http.response.body", "body": body})
            return
        await self._start(status, [(b"content-type", b"application/json"), length, *headers, (b"connection", b"close")])
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await self._drain()
        self.finished = True
        await self._send({"type": "http.response.body", "body": b""})

    async def open_stream(self, headers: Sequence[Header] = ()) -> None:
        """Start a response of server-sent events."""
        self.streaming = True
        await self._start(200, [(b"content-type", b"text/event-stream; charset=utf-8"), *headers])

    async def write(self, frames: bytes) -> None:
        """Send frames at once. Waits while the client is slow."""
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def close_stream(self, frames: bytes) -> None:
        """Send the last frames and end the response."""
        self.finished = True
        await self._send({"type": "http.response.body", "body": frames})

    async def _start(self, status: int, headers: list[Header]) -> None:
        self.started = True
        fixed = [(b"cache-control", b"no-store"), (b"x-request-id", self._id.encode())]
        theirs = self.header(b"x-request-id")
        if theirs and len(theirs) <= _ECHO_CHARACTERS_MAX and all(33 <= byte <= 126 for byte in theirs):
            fixed.append((b"x-client-request-id", theirs))
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *fixed]})

    async def _drain(self) -> None:
        """Read on for a moment after refusing an upload midway.

        Closing a socket with unread bytes resets the connection, and the reset may destroy our answer before the client
        has read it. A client that waits for ``100 Continue`` has sent nothing, and reading would ask it to.
        """
        if self.header(b"expect").lower() == b"100-continue":
            return
        left = _DRAIN_BYTES_MAX
        try:
            async with asyncio.timeout(_DRAIN_SECONDS_MAX):
                async for chunk in self.chunks():
                    left -= len(chunk)
                    if left < 0:
                        return
        except (TimeoutError, ClientGone):
            return
