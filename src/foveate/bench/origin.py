"""A web server on this machine that benchmarks have pictures fetched from."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from foveate.bench.server import HOST

CACHEABLE: Final = "max-age=3600"
FETCHED_AGAIN: Final = "no-store"


class Origin:
    """Pictures by path. ``gets`` counts what was asked for."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.gets = 0
        self._pictures: dict[str, tuple[bytes, str]] = {}

    def offer(self, name: str, data: bytes, freshness: str = CACHEABLE) -> str:
        """Serve a JPEG under ``name`` with this ``Cache-Control``; return its URL."""
        self._pictures[f"/{name}"] = data, freshness
        return f"http://{HOST}:{self.port}/{name}"

    def get(self, path: str) -> tuple[bytes, str]:
        """Return what is served there. Raises KeyError."""
        self.gets += 1
        return self._pictures[path]


@contextmanager
def origin(*, delay_seconds: float = 0.0) -> Iterator[Origin]:
    """Serve on a free port; every answer waits ``delay_seconds`` first, as one from far away."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            time.sleep(delay_seconds)
            body, freshness = made.get(self.path)
            self.send_response(200)
            self.send_header("content-type", "image/jpeg")
            self.send_header("content-length", str(len(body)))
            self.send_header("cache-control", freshness)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what a benchmark prints is its figures."""

    class Listener(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Listener((HOST, 0), Handler)
    made = Origin(server.server_port)
    thread = threading.Thread(target=server.serve_forever, name="origin", daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetching(port: int) -> tuple[str, ...]:
    """Return the flags with which Foveate fetches from an origin on this machine."""
    return ("--fetch-http-allowed", "--fetch-private-networks", f"{HOST}/32", "--fetch-ports", str(port))
