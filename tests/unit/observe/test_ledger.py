from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveate.core import clock
from foveate.core.errors import EngineFailed, InvalidPart, QueueFull, error_classes
from foveate.core.stages import STAGES, Span
from foveate.observe.ledger import RequestLedger
from foveate.observe.records import OUTCOMES, Breakdown, outcome_of
from foveate.observe.request_line import encoded, line
from foveate.observe.spending import Spent
from foveate.observe.waterfall import waterfall


def ledger(images: int = 0, received_at: float = 100.0) -> RequestLedger:
    return RequestLedger(request_id="r-1", model="demo", received_at=received_at, images=images)


def finished(images: int = 1) -> RequestLedger:
    led = ledger(images)
    led.span(Span("admission", 100.0, 100.01))
    for index in range(images):
        item = led.item(index)
        item.spans([Span("media_fetch", 100.01, 100.02), Span("media_decode", 100.02, 100.05 + index / 100)])
        item.ready(100.05 + index / 100)
    led.spans([Span("llm_queue", 100.1, 100.11), Span("llm_prefill", 100.11, 100.2)])
    led.first_token(100.2)
    return led


def parse(header: str) -> dict[str, float]:
    entries = header.split(", ")
    assert all(re.fullmatch(r"[a-z_]+;dur=\d+\.\d{3}", entry) for entry in entries), header
    return {name: float(ms) for name, ms in (entry.split(";dur=") for entry in entries)}


def test_breakdown_closes_after_the_first_token_whatever_comes_later() -> None:
    led = finished()
    first = led.breakdown(100.2)
    led.output(1, 100.2)
    led.output(1, 100.3)
    later = led.breakdown(105.0)
    assert first.ttft_ms == later.ttft_ms == pytest.approx(200)
    assert sum(later.stages.values()) + later.unattributed_ms == pytest.approx(200, abs=1e-6)
    assert later.total_ms == pytest.approx(5000)


def test_a_span_that_comes_after_the_headers_is_in_the_record() -> None:
    led = finished()
    before = led.breakdown(100.3)
    assert "embedding_transfer" not in before.stages
    led.item(0).span(Span("embedding_transfer", 100.05, 100.06))
    record = led.end("answered", error_code=None, at=101.0)
    assert record.breakdown.stages["embedding_transfer"] == pytest.approx(10)
    assert record.breakdown.unattributed_ms == pytest.approx(before.unattributed_ms - 10)


def test_before_the_first_token_every_look_is_anew() -> None:
    led = ledger()
    assert led.breakdown(100.1).unattributed_ms == pytest.approx(100)
    assert led.breakdown(100.2).unattributed_ms == pytest.approx(200)


def test_modality_follows_the_pictures() -> None:
    assert ledger(0).modality == "text"
    assert ledger(2).modality == "multimodal"
    assert ledger(2).counts.images == 2


def test_server_timing_after_the_first_token_closes_to_the_digit() -> None:
    timing = parse(finished(2).server_timing())
    assert list(timing) == [
        "admission",
        "media_fetch",
        "media_decode",
        "llm_queue",
        "llm_prefill",
        "ttft",
        "unattributed",
    ]
    stages = sum(ms for name, ms in timing.items() if name in STAGES)
    assert round(stages + timing["unattributed"], 3) == timing["ttft"] == pytest.approx(200, abs=0.01)
    assert timing["media_decode"] == pytest.approx(40, abs=0.002)


def test_prefill_that_ran_ahead_is_told_beside_the_sum() -> None:
    """Two steps began before the last picture was ready at 100.06, the second of them ended after it, and the third is in llm_prefill."""
    led = finished(2)
    without = led.breakdown(100.2)
    led.prefilled_ahead(
        [Span("llm_prefill", *times) for times in ((100.03, 100.04), (100.05, 100.08), (100.08, 100.09))], 100.06
    )
    told = led.breakdown(100.2)
    assert told.overlap_ms == pytest.approx(20)
    assert (told.stages, told.unattributed_ms) == (without.stages, without.unattributed_ms)
    timing = parse(led.server_timing())
    assert timing["prefill_overlap"] == pytest.approx(20, abs=0.001)
    covered = sum(ms for name, ms in timing.items() if name in STAGES)
    assert covered + timing["unattributed"] == pytest.approx(timing["ttft"], abs=0.001)
    record = led.end("answered", error_code=None, at=101.0)
    logged = line(record, 1.7e9)
    assert logged.prefill_overlap_ms == pytest.approx(20)
    assert logged.prefill_overlap_start_ms == pytest.approx(30)
    bars = [bar for bar in waterfall(logged).bars if bar.stage == "llm_prefill"]
    assert [(round(bar.start_ms), round(bar.ms), bar.critical) for bar in bars] == [(30, 20, False), (110, 90, True)]


def test_without_prefill_ahead_nothing_is_told_of_it() -> None:
    led = finished(2)
    led.prefilled_ahead([], 100.06)
    assert "prefill_overlap" not in led.server_timing()
    assert b"prefill_overlap" not in encoded(led.end("answered", error_code=None, at=101.0), 1.7e9)


def test_server_timing_of_an_error_answer_has_no_ttft() -> None:
    led = ledger(1, received_at=clock.now() - 1.0)
    led.item(0).span(Span("media_fetch", led.received_at, led.received_at + 0.25))
    timing = parse(led.server_timing())
    assert list(timing) == ["media_fetch", "unattributed"]
    assert timing["media_fetch"] == pytest.approx(250, abs=0.01)
    assert 700 < timing["unattributed"] < 60_000


@given(st.dictionaries(st.sampled_from(STAGES), st.floats(0, 1e5)), st.floats(0, 1e5))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rounding_keeps_the_sum_closed(stages: dict, rest: float) -> None:  # type: ignore[type-arg]
    ttft = sum(stages.values()) + rest
    rounded, rounded_ttft, unattributed = Breakdown(stages, ttft, rest, None, ttft).rounded()
    assert rounded_ttft is not None
    assert unattributed >= 0
    in_us = [round(ms * 1e3) for ms in (*rounded.values(), unattributed)]
    assert sum(in_us) == round(rounded_ttft * 1e3)
    assert rounded_ttft == pytest.approx(ttft, abs=0.002)
    assert all(abs(rounded[stage] - stages[stage]) <= 0.0011 for stage in stages)


def test_time_per_output_token() -> None:
    led = finished()
    assert led.breakdown(101).tpot_ms is None
    led.output(1, 100.2)
    assert led.breakdown(101).tpot_ms is None
    led.output(1, 100.3)
    led.output(2, 100.5)
    assert led.breakdown(101).tpot_ms == pytest.approx(100)
    assert led.counts.output_tokens == 4


def test_time_per_output_token_of_several_choices_is_theirs_not_the_stream_s() -> None:
    led = finished()
    for step in range(5):
        for choice in range(3):
            led.output(1, 100.2 + step / 10, choice)
    assert led.breakdown(101).tpot_ms == pytest.approx(100)


def test_a_request_ends_once_and_has_one_first_token() -> None:
    led = finished()
    with pytest.raises(RuntimeError, match="first token"):
        led.first_token(100.3)
    led.end("answered", error_code=None, at=100.5)
    with pytest.raises(RuntimeError, match="ended already"):
        led.end("failed", error_code=None, at=100.6)


def test_the_record_holds_what_happened() -> None:
    led = finished(2)
    led.item(1).origin("example.org")
    led.counts.pixels = 12
    record = led.end("failed", error_code="engine_failed", at=101.0)
    assert (record.request_id, record.model, record.modality) == ("r-1", "demo", "multimodal")
    assert (record.outcome, record.error_code, record.counts.pixels) == ("failed", "engine_failed", 12)
    assert [item.index for item in record.items] == [0, 1]
    assert record.items[0].stages == pytest.approx({"media_fetch": 10, "media_decode": 30})
    assert record.items[1].stages == pytest.approx({"media_fetch": 10, "media_decode": 40})
    assert record.items[1].ready_ms == pytest.approx(60)
    assert (record.items[0].host, record.items[1].host) == (None, "example.org")
    assert record.breakdown.stages["media_decode"] == pytest.approx(40)


def test_a_span_that_ends_before_it_begins_is_a_bug() -> None:
    with pytest.raises(ValueError, match="before it begins"):
        ledger().span(Span("llm_queue", 2.0, 1.0))
    with pytest.raises(ValueError, match="before it begins"):
        ledger(1).item(0).span(Span("media_fetch", 2.0, 1.0))


@pytest.mark.parametrize("host", ["", "example.org/path", "example.org?token=x", "user@example.org", "a b", "x" * 300])
def test_an_origin_is_a_bare_host(host: str) -> None:
    with pytest.raises(ValueError, match="bare host name"):
        ledger(1).item(0).origin(host)


def test_every_error_has_an_outcome() -> None:
    assert outcome_of(InvalidPart()) == "refused"
    assert outcome_of(QueueFull()) == "overloaded"
    assert outcome_of(EngineFailed()) == "failed"
    assert {outcome_of(kind()) for kind in error_classes().values()} <= set(OUTCOMES)


def test_what_it_took_is_summed_over_items() -> None:
    ledger = RequestLedger(request_id="r", model="m", received_at=0.0, images=2)
    made, found = ledger.item(0), ledger.item(1)
    made.spent.charge(
        [
            Span("media_decode", 0.0, 1.0, 3.0),
            Span("mm_processor", 1.0, 2.0, 4.0),
            Span("encoder_queue", 2.0, 3.0),
            Span("vision_encode", 3.0, 4.0, 5.0),
        ]
    )
    made.spent.fetch_bytes += 100
    found.spared(
        "processor_cache",
        {"media_decode": 7.0, "mm_processor": 1.0, "vision_encode": 50.0},
        "media_decode",
        "mm_processor",
    )
    ledger.spent.media_cpu_ms += 2.0
    ledger.spent.engine_token_ms += 6.0
    record = ledger.end("answered", error_code=None, at=5.0)
    assert record.spent == Spent(100, 5.0, 4.0, 5.0, 6.0, 8.0)
    assert [item.found for item in record.items] == [None, "processor_cache"]
    assert record.items[1].spent == Spent(cache_saved_ms=8.0)


def test_an_engine_that_says_nothing_is_taken_by_its_time() -> None:
    ledger = RequestLedger(request_id="r", model="m", received_at=0.0, images=0)
    ledger.spans([Span("llm_queue", 0.0, 1.0), Span("llm_prefill", 1.0, 3.0)])
    ledger.first_token(3.0)
    ledger.output(1, 3.0)
    ledger.output(4, 3.5)
    assert ledger.end("answered", error_code=None, at=9.0).spent.engine_token_ms == pytest.approx(2500)
