"""Listeners that nobody may reach, and origins that answer as no good origin does."""

from __future__ import annotations

import gzip
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.blackbox.origins import Answer


class Trap:
    """Listens at these addresses and counts who connects, closing each connection at once."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self.connections = 0
        self._wake, self._end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._end, selectors.EVENT_READ)
        for host, port in addresses:
            listener = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64
            )
            self.port = int(listener.getsockname()[1])
            self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._end:
                    return
                assert isinstance(key.fileobj, socket.socket)
                self.connections += 1
                key.fileobj.accept()[0].close()

    def close(self) -> None:
        self._wake.send(b"x")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._wake.close()


@contextmanager
def trap(*addresses: tuple[str, int]) -> Iterator[Trap]:
    made = Trap(*addresses)
    try:
        yield made
    finally:
        made.close()


def raw(*pieces: bytes) -> Answer:
    """Send exactly these bytes as the whole answer, then close."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        for piece in pieces:
            handler.wfile.write(piece)

    return answer


def head(*headers: str, status: str = "200 OK") -> bytes:
    """Return the head of an answer."""
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1")


def silent(gate: threading.Event) -> Answer:
    """Accept the request and never answer."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        gate.wait(120)

    return answer


def dripping(gate: threading.Event, seconds: float) -> Answer:
    """Announce a body and send one byte of it at a time, for ever."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(head("Content-Type: image/png", "Content-Length: 100000"))
        while not gate.is_set():
            handler.wfile.write(b"\x89")
            handler.wfile.flush()
            time.sleep(seconds)

    return answer


def encoded_as(codings: str, data: bytes, *, mime: str = "image/png") -> Answer:
    """Send these bytes under a Content-Encoding that nobody asked for."""
    return raw(
        head(
            f"Content-Type: {mime}", f"Content-Encoding: {codings}", f"Content-Length: {len(data)}", "Connection: close"
        )
        + data
    )


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)


def closing_once(then: Answer, dropped: list[str]) -> Answer:
    """Drop the first connection without a word; answer the second."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if not dropped:
            dropped.append(handler.path)
            handler.close_connection = True
            return
        then(handler)

    return answer


def by_turns(answers: Sequence[Answer]) -> Answer:
    """Answer each request for the same path differently; the last answer stays."""
    left = list(answers)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(handler)

    return answer
