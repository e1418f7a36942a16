"""Traces: every finished request becomes spans that are exported by OTLP over HTTP.

Spans are made and sent by one thread behind a bounded queue, so neither the event loop nor a request ever waits for a collector. When it
cannot be reached, or cannot keep up, traces are dropped and counted.
"""

from __future__ import annotations

import queue
import threading
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from foveate.core import clock
from foveate.core.trace_context import TraceContext
from foveate.observe.logging import get_logger
from foveate.observe.records import LedgerRecord
from foveate.observe.trace_spans import begun, spans_of

_BATCH_MAX: Final = 64
"""Requests in one export."""
_GATHER_SECONDS: Final = 0.5
"""A trace is exported so much later, that those of a busy server go together: an HTTP request for each costs more than all else of it."""
EXPORT_SECONDS_MAX: Final = 10.0

_log = get_logger(__name__)


class Traces:
    """Exports requests' spans to ``endpoint``, an OTLP receiver's URL for traces (``http://host:4318/v1/traces``).

    ``sample_rate`` (0..1) is the share of traces recorded where no caller decided. :meth:`start` and :meth:`close` it.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        version: str,
        sample_rate: float = 1.0,
        requests_max: int = 4096,
        exporter: SpanExporter | None = None,
    ) -> None:
        self._exporter = exporter or OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS_MAX)
        self._resource = Resource.create({"service.name": "foveate", "service.version": version})
        self._sample_rate = sample_rate
        self._queue: queue.Queue[tuple[LedgerRecord, float]] = queue.Queue(requests_max)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._closing = threading.Event()
        self._refused = 0
        self._failed = 0

    @property
    def dropped(self) -> int:
        """Requests whose trace was lost since the start."""
        return self._refused + self._failed

    def start(self) -> None:
        """Start the exporter's thread."""
        self._thread.start()

    def begin(self, caller: TraceContext | None) -> TraceContext:
        """Return the span of a request that has begun: a new one of the caller's trace, or of a trace of its own."""
        return begun(caller, self._sample_rate)

    def write(self, record: LedgerRecord) -> None:
        """Hand a record to the exporter; drop and count it when the queue is full. Never waits."""
        try:
            self._queue.put_nowait((record, clock.wall_at(record.ended_at)))
        except queue.Full:
            self._refused += 1

    def close(self, seconds_max: float = 3.0) -> None:
        """Export what is queued and end the thread, within about ``seconds_max``. Blocks: from the event loop, use a thread."""
        self._closing.set()
        self._thread.join(seconds_max)
        # Ends an export that still tries again.
        self._exporter.shutdown()
        if self._thread.is_alive():
            _log.warning("traces were not exported in time", requests=self._queue.qsize())

    def _run(self) -> None:
        told = 0
        while True:
            batch = self._batch()
            if batch:
                self._export(batch)
            elif self._closing.is_set():
                return
            if self.dropped > told:
                _log.warning("traces were dropped", requests=self.dropped - told, total=self.dropped)
                told = self.dropped

    def _batch(self) -> list[tuple[LedgerRecord, float]]:
        """Wait a little for a record and take those behind it, too."""
        batch: list[tuple[LedgerRecord, float]] = []
        try:
            batch.append(self._queue.get(timeout=0.2))
            if self._queue.qsize() < _BATCH_MAX:
                self._closing.wait(_GATHER_SECONDS)
            while len(batch) < _BATCH_MAX:
                batch.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return batch

    def _export(self, batch: list[tuple[LedgerRecord, float]]) -> None:
        spans: list[ReadableSpan] = []
        requests = 0
        for record, wall in batch:
            made = spans_of(record, wall, self._resource)
            spans += made
            requests += bool(made)
        if not spans:
            return
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            # The thread must live; a collector's odd answer costs this batch.
            _log.error("traces could not be exported", reason=f"{type(error).__name__}: {error}")
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            self._failed += requests
