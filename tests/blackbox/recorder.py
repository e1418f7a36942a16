"""A recording proxy between a gateway and the server behind it: what the gateway sends, byte for byte, and a switch to cut answers off."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

CUT_AFTER_BYTES = 1500


class Recorder:
    """Listens at ``url`` and passes everything to ``target``. While ``cutting``, answers end after some bytes of their streams."""

    def __init__(self, target: str) -> None:
        self.bodies: list[bytes] = []
        self.heads: list[str] = []
        self.cutting = False
        self.refusing: int | None = None
        self.left = threading.Event()
        recorder = self
        where = urlsplit(target)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self, body: bytes | None) -> None:
                sent = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                upstream = http.client.HTTPConnection(where.hostname or "", where.port, timeout=120)
                try:
                    upstream.request(self.command, self.path, body, sent)
                    answer = upstream.getresponse()
                    self.send_response(answer.status)
                    for name in ("content-type", "retry-after"):
                        if answer.headers.get(name):
                            self.send_header(name, answer.headers[name])
                    self.send_header("connection", "close")
                    self.end_headers()
                    self.close_connection = True
                    passed = 0
                    while data := answer.read1(65536):
                        self.wfile.write(data)
                        passed += len(data)
                        if recorder.cutting and body and passed > CUT_AFTER_BYTES:
                            return
                except ConnectionError:
                    self.close_connection = True
                    recorder.left.set()
                finally:
                    upstream.close()

            def do_GET(self) -> None:
                self._pass(None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                recorder.bodies.append(body)
                recorder.heads.append(str(self.headers))
                if recorder.refusing is not None:
                    self.send_response(recorder.refusing)
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                self._pass(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that leaves early is no trouble of the recorder's."""

        self._listener = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._listener.server_address[1]}"
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()


@contextmanager
def recording(target: str) -> Iterator[Recorder]:
    made = Recorder(target)
    try:
        yield made
    finally:
        made.close()
