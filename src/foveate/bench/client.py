"""The leanest HTTP client there is for timing: one kept-alive connection, prebuilt bytes, nothing parsed before the first token.

A general client would add a millisecond of its own to what is measured.
"""

from __future__ import annotations

import json
import re
import socket
import time
from types import TracebackType
from typing import Any

import msgspec


class Timed(msgspec.Struct, frozen=True):
    """One answer: HTTP status, milliseconds to its first byte and to its first token, ``Server-Timing`` as numbers, and the text.

    A server that sends its headers before it has a token has a first byte that says nothing. Without a token: ``total_ms``.
    """

    status: int
    first_ms: float
    token_ms: float
    total_ms: float
    timing: dict[str, float]
    text: str


def chat_body(content: Any, *, model: str, tokens: int = 8, stream: bool = True, **more: Any) -> bytes:
    """Return a chat request's JSON with one user turn, greedy."""
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": tokens, "temperature": 0}
    return json.dumps({**body, "stream": stream, **more}).encode()


class Connection:
    """A kept-alive connection to the server. Blocking: benchmarks measure one thing at a time, or run it in threads."""

    def __init__(self, host: str, port: int, *, timeout_seconds: float = 120.0) -> None:
        self._socket = socket.create_connection((host, port), timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, body: bytes) -> Timed:
        """Send a chat request, streamed, and read the whole answer."""
        request = f"{self._head}content-length: {len(body)}\r\n\r\n".encode() + body
        self._socket.sendall(request)
        sent = time.perf_counter()
        received = bytearray(self._receive())
        first = token = time.perf_counter()
        spoken = _speaks(received)
        while not _complete(received):
            received += self._receive()
            if not spoken:
                token, spoken = time.perf_counter(), _speaks(received)
        done = time.perf_counter()
        return _read(bytes(received), tuple((at - sent) * 1e3 for at in (first, token, done)))

    def _receive(self) -> bytes:
        chunk = self._socket.recv(65536)
        if not chunk:
            raise ConnectionError("the server closed the connection before its answer was complete")
        return chunk


def _speaks(received: bytearray) -> bool:
    """Return whether there is any text in it: many servers begin with an empty piece that only names the role."""
    return re.search(rb'"content": ?"[^"]', received) is not None


def _complete(received: bytearray) -> bool:
    head, found, rest = received.partition(b"\r\n\r\n")
    if not found:
        return False
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return len(rest) >= int(length[1]) if length else rest.endswith(b"0\r\n\r\n")


def _read(answer: bytes, times_ms: tuple[float, ...]) -> Timed:
    head, _, rest = answer.partition(b"\r\n\r\n")
    found = re.search(rb"server-timing: ([^\r]*)", head, re.IGNORECASE)
    entries = found[1].decode().split(", ") if found else []
    timing = {name: float(value) for name, value in (entry.split(";dur=") for entry in entries)}
    pieces = re.findall(rb'"content": ?"((?:[^"\\]|\\.)*)"', rest)
    text = "".join(json.loads(b'"' + piece + b'"') for piece in pieces)
    first_ms, token_ms, total_ms = times_ms
    return Timed(int(head.split(b" ", 2)[1]), first_ms, token_ms, total_ms, timing, text)
