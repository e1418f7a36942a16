"""A receiver of OTLP over HTTP, as a collector has it, that keeps what it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class Exported:
    """One span as it arrived. Times in seconds since the epoch."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: float
    end: float
    kind: int
    failed: bool
    attributes: dict[str, Any]
    service: str


@dataclass
class Receiver:
    """``status`` is what it answers; ``bodies`` are the requests' bytes, unpacked."""

    port: int = 0
    status: int = 200
    answering: threading.Event = field(default_factory=threading.Event)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def spans(self) -> list[Exported]:
        """Return all spans, in the order of their arrival."""
        found: list[Exported] = []
        for body in list(self.bodies):
            message = ExportTraceServiceRequest.FromString(body)
            for group in message.resource_spans:
                service = {entry.key: entry.value.string_value for entry in group.resource.attributes}["service.name"]
                found += [_exported(span, service) for scope in group.scope_spans for span in scope.spans]
        return found

    def trace_of(self, request_id: str) -> list[Exported]:
        """Return the spans of the trace that a request is in, its own span first; none if it has not arrived."""
        spans = self.spans()
        root = next((span for span in spans if span.attributes.get("foveate.request_id") == request_id), None)
        if root is None:
            return []
        return [root, *(span for span in spans if span.trace_id == root.trace_id and span is not root)]


def _exported(span: Any, service: str) -> Exported:
    attributes = {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}
    return Exported(
        span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9, span.kind, span.status.code == 2, attributes, service,
    )  # fmt: skip


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Receive on a free port until the block is left."""
    made = Receiver()
    made.answering.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            made.answering.wait(30)
            if self.path == "/v1/traces" and made.status == 200:
                made.bodies.append(gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(made.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.answering.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
