"""Messages over a stream socket: a 4-byte little-endian length, then msgpack.

The gateway's end lives on the event loop and never blocks it; the worker's end blocks. The end of the stream is the
death of the peer, or its wish to stop. Does not cover: bulk data, which lies in the arena.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec

logger = logging.getLogger(__name__)

FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Largest message. The largest in use is the text of a request body; pictures travel in the arena."""

WRITE_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""Unsent bytes after which a worker counts as stuck."""

_LENGTH = struct.Struct("<I")
_READ_BYTES = 256 * 1024


class FrameTooLarge(Exception):
    """A message is larger than :data:`FRAME_BYTES_MAX`."""


class GatewayGone(Exception):
    """The gateway has ended; there is nobody left to work for."""


def frame(payload: bytes) -> bytes:
    """Return ``payload`` with its length in front. Raises FrameTooLarge."""
    _check(len(payload))
    return _LENGTH.pack(len(payload)) + payload


def _check(size: int) -> None:
    if size > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a message of {size} bytes; {FRAME_BYTES_MAX} are allowed")


def _encode(encoder: msgspec.msgpack.Encoder, message: Any) -> bytearray:
    buffer = bytearray(_LENGTH.size)
    encoder.encode_into(message, buffer, _LENGTH.size)
    size = len(buffer) - _LENGTH.size
    _check(size)
    _LENGTH.pack_into(buffer, 0, size)
    return buffer


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._frames: collections.deque[bytes] = collections.deque()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream. Raises FrameTooLarge as soon as a length announces it."""
        self._buffer += data
        at, end = 0, len(self._buffer)
        while end - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, at)
            _check(size)
            start = at + _LENGTH.size
            if end - start < size:
                break
            at = start + size
            with memoryview(self._buffer) as view:
                self._frames.append(bytes(view[start:at]))
        if at:
            del self._buffer[:at]

    def next(self) -> bytes | None:
        """Return the next complete frame, without its length, or ``None``."""
        return self._frames.popleft() if self._frames else None

    def __bool__(self) -> bool:
        return bool(self._frames)


class GatewayChannel(asyncio.Protocol):
    """The gateway's end. Calls ``on_message`` for every message and ``on_closed`` exactly once.

    ``on_fault`` is told when the peer breaks the protocol or does not read; the channel is of no use then and the
    owner ends the peer.
    """

    def __init__(
        self,
        sends: Any,
        *,
        on_message: Callable[[Any], None],
        on_closed: Callable[[], None],
        on_fault: Callable[[str], None],
    ) -> None:
        """``sends`` is the type of the messages that the peer sends."""
        self._decoder = msgspec.msgpack.Decoder(sends)
        self._encoder = msgspec.msgpack.Encoder()
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_fault = on_fault
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._finished = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        try:
            self._reader.feed(data)
        except FrameTooLarge as error:
            self._on_fault(str(error))
            return
        while (payload := self._reader.next()) is not None:
            try:
                message = self._decoder.decode(payload)
            except (msgspec.ValidationError, msgspec.DecodeError) as error:
                self._on_fault(f"a message that does not fit its type: {error}")
                return
            try:
                self._on_message(message)
            except Exception:
                # A fault in handling one message must not cost the messages of all other requests.
                logger.exception("handling a worker's message of type %s failed", type(message).__name__)

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._transport = None
        self._on_closed()

    def send(self, message: Any) -> None:
        """Queue a message; nothing happens once the channel is closed or finished. Raises FrameTooLarge."""
        self.send_frame(_encode(self._encoder, message))

    def send_frame(self, data: bytes | bytearray) -> None:
        """Queue a complete frame; nothing happens once the channel is closed or finished."""
        transport = self._open()
        if transport is None:
            return
        if transport.get_write_buffer_size() + len(data) > WRITE_BYTES_MAX:
            self._on_fault(f"{transport.get_write_buffer_size()} bytes wait for it to read")
            return
        transport.write(data)

    def finish(self) -> None:
        """Tell the peer that nothing more comes, which asks it to stop; it may still send."""
        transport = self._open()
        if transport is not None:
            transport.write_eof()
            self._finished = True

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _open(self) -> asyncio.Transport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() or self._finished else transport


class WorkerChannel:
    """The worker's end, blocking. One thread receives; any thread sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] | None = None
        self._reader = FrameReader()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._send_lock = threading.Lock()
        self._ended = False

    def expect(self, receives: Any) -> None:
        """Say what type the messages have that :meth:`receive` returns from now on."""
        self._decoder = msgspec.msgpack.Decoder(receives)

    def receive_frame(self, timeout_seconds: float | None = None) -> bytes | None:
        """Return the next frame's payload, ``None`` at the end of the stream. Raises TimeoutError."""
        give_up = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while (payload := self._reader.next()) is None:
            if self._ended:
                return None
            if give_up is not None:
                left_ms = max(0.0, (give_up - time.monotonic()) * 1000)
                if not self._poll.poll(left_ms):
                    raise TimeoutError
            self._read(0)
        return payload

    def receive(self, timeout_seconds: float | None = None) -> Any | None:
        """Return the next message, ``None`` at the end of the stream. Raises TimeoutError."""
        assert self._decoder is not None
        payload = self.receive_frame(timeout_seconds)
        return None if payload is None else self._decoder.decode(payload)

    def pending(self) -> bool:
        """Tell whether :meth:`receive` would return at once."""
        while not self._reader and not self._ended:
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
        return True

    def send(self, message: Any) -> None:
        """Send a message, waiting while the gateway does not read. Raises FrameTooLarge, GatewayGone."""
        data = _encode(self._encoder, message)
        with self._send_lock:
            try:
                self._connection.sendall(data)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise GatewayGone from error

    def _read(self, flags: int) -> None:
        try:
            data = self._connection.recv(_READ_BYTES, flags)
        except ConnectionResetError:
            data = b""  # the gateway died with our messages unread: its death, like any other
        if data:
            self._reader.feed(data)
        else:
            self._ended = True
