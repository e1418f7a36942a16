"""Web servers that pictures are fetched from. They count what reaches them, and can hold their answers back."""

from __future__ import annotations

import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


class Origin:
    """Serves ``pages`` by path (the query is ignored) and 404 otherwise.

    ``targets`` has what each request line asked for, byte for byte.
    """

    def __init__(self, address: str, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.pages: dict[str, Answer] = {}
        self.gets: Counter[str] = Counter()
        self.targets: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.gate = threading.Event()
        self._lock = threading.Lock()
        origin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                with origin._lock:
                    origin.gets[path] += 1
                    origin.targets.append(self.requestline.split(" ")[1])
                    origin.headers.append(dict(self.headers))
                origin.pages.get(path, status(404))(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: a test's output is its own."""

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def get_request(self) -> Any:
                with origin._lock:
                    origin.connections += 1
                return super().get_request()

            def finish_request(self, request: Any, client_address: Any) -> None:
                # In the connection's own thread: a handshake that hangs must not keep others out.
                if tls is not None:
                    request.settimeout(30)
                    request = tls.wrap_socket(request, server_side=True)
                super().finish_request(request, client_address)

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that leaves early is no trouble of the origin's."""

        self._listener = Listener((address, port), Handler)
        self.port = int(self._listener.server_address[1])
        self.url = f"{'https' if tls else 'http'}://{address}:{self.port}"
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.gate.set()
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()


@contextmanager
def origin(address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Origin]:
    made = Origin(address, port, tls)
    try:
        yield made
    finally:
        made.close()


def body(data: bytes, mime: str = "image/png") -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", mime)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def cacheable(data: bytes, *headers: tuple[str, str], mime: str = "image/png") -> Answer:
    """Answer with these header fields; or, where one is an ETag that the client has, that nothing has changed."""
    tag = dict(headers).get("ETag")

    def answer(handler: BaseHTTPRequestHandler) -> None:
        unchanged = tag is not None and handler.headers.get("If-None-Match") == tag
        handler.send_response(304 if unchanged else 200)
        for name, value in (
            *headers,
            *(() if unchanged else (("Content-Type", mime), ("Content-Length", str(len(data))))),
        ):
            handler.send_header(name, value)
        handler.end_headers()
        if not unchanged:
            handler.wfile.write(data)

    return answer


def signed(by: tuple[str, ...], then: Answer) -> Answer:
    """Answer 403 unless the query is one of ``by``."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (then if handler.path.partition("?")[2] in by else status(403))(handler)

    return answer


def status(code: int, *headers: tuple[str, str]) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in (*headers, ("Content-Length", "0")):
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def redirect(target: str) -> Answer:
    return status(302, ("Location", target))


def held(gate: threading.Event, then: Answer) -> Answer:
    """Answer only when the gate opens."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        gate.wait(120)
        then(handler)

    return answer


def delayed(seconds: float, then: Answer) -> Answer:
    """Answer only after a while."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)
        then(handler)

    return answer


def endless(gate: threading.Event) -> Answer:
    """Send without a length until the client goes (or the gate opens)."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "image/png")
        handler.send_header("Connection", "close")
        handler.end_headers()
        while not gate.is_set():
            handler.wfile.write(b"\x89PNG\r\n\x1a\n" * 8192)
        handler.close_connection = True

    return answer


def stalled(gate: threading.Event) -> Answer:
    """Announce a body, send its first bytes, then nothing more."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "image/png")
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        handler.wfile.write(b"\x89PNG\r\n\x1a\n")
        handler.wfile.flush()
        gate.wait(120)
        handler.close_connection = True

    return answer
