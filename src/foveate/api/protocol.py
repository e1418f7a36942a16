"""uvicorn's HTTP protocol with the limits that it lacks: on the head of a request, and on clients that do not send or
do not read.

uvicorn bounds neither the size of a request's headers nor the time they take, and it waits without end for a client
that reads nothing while a stream is open. Each limit here closes the connection, and the exchange on it ends as for any
client that left.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from foveate.api import errors
from foveate.core.errors import Refused


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What connections may cost. ``stalled_seconds_max`` is how long a client may leave a full write buffer unread."""

    head_bytes_max: int = 64 * 1024
    head_seconds_max: float = 20.0
    stalled_seconds_max: float = 60.0
    connections_max: int = 8192


class LimitedProtocol(HttpToolsProtocol):
    """One client connection."""

    limits: ConnectionLimits = ConnectionLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
        self._head_is_new = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections_max:
            transport.close()
            return
        self._head_timer = self.loop.call_later(self.limits.head_seconds_max, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._head_timer)
        self._stop(self._stall_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_is_new = False
        super().data_received(data)
        # What a head begins in also holds the end of what came before it, and is no longer than one read.
        if self._in_head and not self._head_is_new:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes_max and not self.transport.is_closing():
                self.send_400_response("The request's headers are too long.")

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_is_new = True
        self._head_bytes = 0
        if self._head_timer is None:
            # The next request of a kept connection: uvicorn has just stopped its own timer.
            self._head_timer = self.loop.call_later(self.limits.head_seconds_max, self._close)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop(self._head_timer)
        self._head_timer = None
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.limits.stalled_seconds_max, self._abort)

    def resume_writing(self) -> None:
        self._stop(self._stall_timer)
        self._stall_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, in the shape of all other errors."""
        body = errors.body(Refused(msg))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()

    def end(self) -> None:
        """Close the connection: what is buffered is still sent, unless the client has stopped reading."""
        if self.flow.write_paused:
            self.transport.abort()
        else:
            self.transport.close()

    def _close(self) -> None:
        self.transport.close()

    def _abort(self) -> None:
        # Not close(): that would wait for the client to read what is buffered.
        self.transport.abort()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def limited_protocol(limits: ConnectionLimits) -> type[LimitedProtocol]:
    """Return the protocol class with these limits."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
