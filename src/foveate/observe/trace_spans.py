"""From a finished request's record to its spans: the request, its items, and the stages of each, across the processes that did the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from foveate.core.stages import Span, Stage
from foveate.core.trace_context import TraceContext
from foveate.observe.records import ItemRecord, LedgerRecord
from foveate.observe.redact import redact_text
from foveate.observe.request_line import HOST_MAX, NAME_MAX, TENANT_MAX
from foveate.observe.spending import QUANTITIES

SPANS_MAX: Final = 256
"""Stage spans of one request; a video's groups of frames could be very many. How many were left out is said on the request's span."""
PROCESSES: Final[dict[Stage, str]] = {
    "admission": "gateway",
    "media_fetch": "gateway",
    "media_decode": "media",
    "mm_processor": "media",
    "encoder_queue": "encoder",
    "vision_encode": "encoder",
    "embedding_transfer": "encoder",
    "llm_queue": "engine",
    "llm_prefill": "engine",
    "upstream": "upstream",
}
"""Which kind of process a stage's work is done in."""
_IDS: Final = RandomIdGenerator()
_SCOPE: Final = InstrumentationScope("foveate")
_FAILED: Final = frozenset({"failed", "overloaded"})


def begun(caller: TraceContext | None, sample_rate: float) -> TraceContext:
    """Return a request's own span. A caller's decision to record a trace, or not to, is followed; else ``sample_rate`` (0..1) of all
    traces are recorded.
    """
    span_id = _IDS.generate_span_id()
    if caller is not None:
        return TraceContext(caller.trace_id, span_id, caller.sampled)
    trace_id = _IDS.generate_trace_id()
    # As OpenTelemetry's TraceIdRatioBased: by the id, so that every service that sees a trace decides alike.
    return TraceContext(trace_id, span_id, (trace_id & (2**64 - 1)) < sample_rate * 2**64)


def spans_of(record: LedgerRecord, ended_wall: float, resource: Resource) -> list[ReadableSpan]:
    """Return the request's spans; none when it is not recorded. ``ended_wall``: seconds since the epoch at its end."""
    if record.span is None or not record.span.sampled:
        return []
    return list(_Writer(record, record.span, ended_wall, resource).spans())


class _Writer:
    """Writes the spans of one trace. Times are monotonic seconds until they are written."""

    def __init__(self, record: LedgerRecord, own: TraceContext, ended_wall: float, resource: Resource) -> None:
        self._record = record
        self._wall = ended_wall - record.ended_at
        self._resource = resource
        self._trace_id = own.trace_id
        self._root_id = own.span_id
        self._left = SPANS_MAX
        self._omitted = 0

    def spans(self) -> Iterator[ReadableSpan]:
        record = self._record
        root = self._context(self._root_id)
        yield from self._stages(record.spans, root)
        yield from self._stages(record.ahead, root, {"foveate.overlapped": True})
        for item in record.items:
            yield from self._item(item, root)
        first = record.breakdown.ttft_ms
        if first is not None and record.breakdown.tpot_ms is not None:
            started = record.received_at + first / 1e3
            ms: dict[str, AttributeValue] = {"foveate.tpot_ms": round(record.breakdown.tpot_ms, 3)}
            yield self._span("tpot", self._context(), root, (started, record.ended_at), ms)
        parent = None if record.trace is None else self._context(record.trace.span_id, remote=True)
        window = (record.received_at, record.ended_at)
        yield self._span("request", root, parent, window, self._facts(), kind=SpanKind.SERVER)

    def _item(self, item: ItemRecord, root: SpanContext) -> Iterator[ReadableSpan]:
        spans = [span for span in item.spans if span.end >= self._record.received_at]
        if not spans:
            return
        context = self._context()
        yield from self._stages(spans, context)
        ready = None if item.ready_ms is None else self._record.received_at + item.ready_ms / 1e3
        window = (min(span.start for span in spans), max(ready or 0.0, max(span.end for span in spans)))
        facts: dict[str, AttributeValue] = {
            "foveate.item": item.index,
            "foveate.critical": item.index == self._record.breakdown.critical,
        }
        if item.host:
            facts["server.address"] = redact_text(item.host[:HOST_MAX])
        if item.found is not None:
            facts["foveate.found"] = item.found
        yield self._span("item", context, root, window, facts)

    def _stages(
        self, spans: Sequence[Span], parent: SpanContext, more: Mapping[str, AttributeValue] | None = None
    ) -> Iterator[ReadableSpan]:
        for span in spans:
            if not self._left:
                self._omitted += 1
                continue
            self._left -= 1
            facts: dict[str, AttributeValue] = {"foveate.process": PROCESSES[span.stage], **(more or {})}
            if span.cost_ms:
                facts["foveate.cost_ms"] = round(span.cost_ms, 3)
            yield self._span(span.stage, self._context(), parent, (span.start, span.end), facts)

    def _facts(self) -> dict[str, AttributeValue]:
        record, counts = self._record, self._record.counts
        _, ttft_ms, unattributed_ms = record.breakdown.rounded()
        facts: dict[str, AttributeValue] = {
            "foveate.request_id": redact_text(record.request_id[:NAME_MAX]),
            "gen_ai.request.model": redact_text(record.model[:NAME_MAX]),
            "foveate.tenant": record.tenant[:TENANT_MAX],
            "foveate.tier": record.tier[:TENANT_MAX],
            "foveate.modality": record.modality,
            "foveate.outcome": record.outcome,
            "foveate.unattributed_ms": unattributed_ms,
            "foveate.images": counts.images,
            "foveate.videos": counts.videos,
            "foveate.visual_tokens": counts.visual_tokens,
            "gen_ai.usage.input_tokens": counts.text_tokens + counts.visual_tokens,
            "gen_ai.usage.output_tokens": counts.output_tokens,
            **{f"foveate.spent.{name}": round(getattr(record.spent, name), 3) for name in QUANTITIES},
        }
        if ttft_ms is not None:
            facts["foveate.ttft_ms"] = ttft_ms
        if record.error_code is not None:
            facts["error.type"] = record.error_code
        if record.limit_name is not None:
            facts["foveate.limit_name"] = record.limit_name
        if self._omitted:
            facts["foveate.spans_omitted"] = self._omitted
        return facts

    def _context(self, span_id: int | None = None, *, remote: bool = False) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(self._trace_id, span_id or _IDS.generate_span_id(), is_remote=remote, trace_flags=flags)

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        window: tuple[float, float],
        facts: dict[str, AttributeValue],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> ReadableSpan:
        failed = kind is SpanKind.SERVER and self._record.outcome in _FAILED
        start, end = (int((moment + self._wall) * 1e9) for moment in window)
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            facts,
            kind=kind,
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=start,
            end_time=max(end, start),
            instrumentation_scope=_SCOPE,
        )
