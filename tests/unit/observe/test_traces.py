"""Traces reach a real OTLP receiver, whole and bounded, and never hold a request up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.resources import Resource
from tests.otlp import Exported, Receiver, receiver

from foveate.core.clock import now
from foveate.core.stages import STAGES, Span
from foveate.core.trace_context import TraceContext
from foveate.observe.ledger import RequestLedger
from foveate.observe.records import LedgerRecord, Outcome
from foveate.observe.trace_spans import PROCESSES, SPANS_MAX, begun, spans_of
from foveate.observe.traces import Traces

CALLER = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)


def record(
    request_id: str = "r",
    *,
    trace: TraceContext | None = None,
    outcome: Outcome = "answered",
    model: str = "demo",
    groups: int = 1,
    sample_rate: float = 1.0,
) -> LedgerRecord:
    start = now() - 10
    ledger = RequestLedger(request_id=request_id, model=model, received_at=start, images=2, trace=trace)
    ledger.span_of_request = begun(trace, sample_rate)
    ledger.span(Span("admission", start, start + 1))
    for index in range(2):
        item = ledger.item(index)
        item.origin("images.example.org")
        for group in range(groups):
            item.span(Span("media_fetch", start + 1, start + 2))
            item.span(Span("vision_encode", start + 2, start + 4 + index + group / groups, 7.5))
        item.ready(start + 4 + index)
    ledger.spans([Span("llm_queue", start + 5, start + 6), Span("llm_prefill", start + 6, start + 7)])
    ledger.first_token(start + 7)
    ledger.output(1, start + 7)
    ledger.output(3, start + 9)
    code = None if outcome == "answered" else "engine_failed"
    return ledger.end(outcome, error_code=code, at=start + 9)


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def exported(collector: Receiver, *records: LedgerRecord) -> list[Exported]:
    traces = Traces(collector.url, version="0")
    traces.start()
    for each in records:
        traces.write(each)
    traces.close(20)
    assert traces.dropped == 0
    return collector.spans()


def test_a_request_s_trace(collector: Receiver) -> None:
    made = record(trace=CALLER)
    spans = exported(collector, made)
    (root,) = [span for span in spans if span.name == "request"]
    assert made.span is not None
    assert root.span_id == f"{made.span.span_id:016x}", "the one that others were told of while it was under way"
    assert {span.trace_id for span in spans} == {f"{CALLER.trace_id:032x}"}
    assert (root.parent_id, root.kind, root.service, root.failed) == (f"{CALLER.span_id:016x}", 2, "foveate", False)
    assert 0.999 < time.time() - root.end < 30, "it ended a second before it was handed over"
    assert root.end - root.start == pytest.approx(9, abs=0.001)
    assert root.attributes["foveate.ttft_ms"] == pytest.approx(7000)
    items = [span for span in spans if span.name == "item"]
    assert [item.parent_id for item in items] == [root.span_id] * 2
    assert [item.attributes["foveate.critical"] for item in items] == [False, True]
    assert items[0].attributes["server.address"] == "images.example.org"
    under = {item.span_id: [span for span in spans if span.parent_id == item.span_id] for item in items}
    assert [[span.name for span in each] for each in under.values()] == [["media_fetch", "vision_encode"]] * 2
    encode = under[items[1].span_id][1]
    assert (encode.start - root.start, encode.end - root.start) == (
        pytest.approx(2, abs=0.001),
        pytest.approx(5, abs=0.001),
    )
    assert (encode.attributes["foveate.process"], encode.attributes["foveate.cost_ms"]) == ("encoder", 7.5)
    own = [span.name for span in spans if span.parent_id == root.span_id and span.name != "item"]
    assert own == ["admission", "llm_queue", "llm_prefill", "tpot"]
    for span in spans:
        assert root.start - 0.001 <= span.start <= span.end <= root.end + 0.001


def test_a_failure_is_one_and_a_trace_without_a_caller_is_its_own(collector: Receiver) -> None:
    spans = exported(collector, record("a", outcome="failed"), record("b"))
    failed, fine = (span for span in spans if span.name == "request")
    assert (failed.failed, failed.attributes["error.type"]) == (True, "engine_failed")
    assert failed.trace_id != fine.trace_id
    assert failed.parent_id == ""


def test_sampling_follows_the_caller(collector: Receiver) -> None:
    silent = TraceContext(CALLER.trace_id, CALLER.span_id, False)
    assert exported(collector, record(trace=silent), *(record(sample_rate=0.0) for _ in range(5))) == []
    kept = sum(bool(spans_of(record(sample_rate=0.5), 0.0, Resource({}))) for _ in range(200))
    assert 40 < kept < 160
    assert spans_of(record(trace=CALLER, sample_rate=0.0), 0.0, Resource({}))


def test_spans_are_bounded(collector: Receiver) -> None:
    spans = exported(collector, record(groups=1000))
    assert len(spans) <= SPANS_MAX + 5
    root = next(span for span in spans if span.name == "request")
    assert root.attributes["foveate.spans_omitted"] == 4003 - SPANS_MAX


def test_every_stage_has_a_process() -> None:
    assert set(PROCESSES) == set(STAGES)


def test_hostile_names_are_cut(collector: Receiver) -> None:
    payload = "data:image/png;base64," + "QUJD" * 1000
    exported(collector, record("https://x/?X-Amz-Signature=HIDDEN", model=payload))
    (body,) = collector.bodies
    assert b"QUJD" not in body
    assert b"HIDDEN" not in body


@pytest.mark.timeout(60)
def test_a_collector_that_hangs_or_refuses_costs_traces_and_no_time(collector: Receiver) -> None:
    collector.answering.clear()
    traces = Traces(collector.url, version="0", requests_max=10)
    traces.start()
    started = time.monotonic()
    for _ in range(500):
        traces.write(record())
    assert time.monotonic() - started < 5, "writing never waits"
    assert traces.dropped > 300
    collector.status = 400
    collector.answering.set()
    traces.close(20)
    assert traces.dropped == 500
    assert not [thread for thread in threading.enumerate() if thread.name == "traces"]


@pytest.mark.timeout(60)
def test_traces_of_a_busy_server_go_together(collector: Receiver) -> None:
    traces = Traces(collector.url, version="0")
    traces.start()
    for _ in range(60):
        traces.write(record())
        time.sleep(0.001)
    traces.close(30)
    assert traces.dropped == 0
    assert len(collector.spans()) >= 60
    assert len(collector.bodies) < 30, "not a request each"


@pytest.mark.timeout(60)
def test_no_collector_at_all(collector: Receiver) -> None:
    traces = Traces("http://127.0.0.1:9/v1/traces", version="0")
    traces.start()
    traces.write(record())
    started = time.monotonic()
    traces.close(2)
    assert time.monotonic() - started < 10
