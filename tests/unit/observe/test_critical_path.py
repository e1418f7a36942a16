"""The fold: for any spans whatever, the sum closes and nothing is counted twice."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveate.core.stages import STAGES, Span, Stage
from foveate.observe.critical_path import ItemSpans, critical_item, fold

CLOSED_MS = 1e-6


def spans(base: float) -> st.SearchStrategy[list[Span]]:
    raw = st.tuples(st.sampled_from(STAGES), st.floats(-50, 200), st.floats(0, 100))
    return st.lists(raw, max_size=6).map(
        lambda found: [Span(stage, base + start, base + start + length) for stage, start, length in found]
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[float, float, list[Span], list[ItemSpans]]:
    # Up to four months of uptime: where a float of seconds has few digits left for microseconds.
    received_at = draw(st.floats(0, 1e7))
    until = received_at + draw(st.floats(0, 150))
    items = [
        ItemSpans(draw(st.none() | st.floats(received_at, until)), draw(spans(received_at)))
        for _ in range(draw(st.integers(0, 3)))
    ]
    return received_at, until, draw(spans(received_at)), items


def raw_ms(path: list[Span], stage: Stage) -> float:
    return sum(span.end - span.start for span in path if span.stage == stage) * 1e3


@given(requests())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_sum_closes_and_no_stage_exceeds_its_spans(case: tuple[float, float, list[Span], list[ItemSpans]]) -> None:
    received_at, until, own, items = case
    folded = fold(received_at, until, own, items)
    assert folded.unattributed_ms >= 0
    assert abs(sum(folded.stages.values()) + folded.unattributed_ms - folded.window_ms) <= CLOSED_MS
    path = own + (list(items[folded.critical].spans) if folded.critical is not None else [])
    for stage, ms in folded.stages.items():
        assert 0 <= ms <= raw_ms(path, stage) + CLOSED_MS
    assert list(folded.stages) == [stage for stage in STAGES if stage in folded.stages]


@given(requests())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_covered_time_is_the_measure_of_the_union(case: tuple[float, float, list[Span], list[ItemSpans]]) -> None:
    """Against another way to get it: cut the window at every border and ask of each piece whether any span holds it."""
    received_at, until, own, items = case
    folded = fold(received_at, until, own, items)
    path = own + (list(items[folded.critical].spans) if folded.critical is not None else [])
    borders = sorted({received_at, until, *(t for s in path for t in (s.start, s.end) if received_at < t < until)})
    covered = sum(b - a for a, b in pairwise(borders) if any(s.start <= a and b <= s.end for s in path))
    assert sum(folded.stages.values()) == pytest.approx(covered * 1e3, abs=1e-5)


def test_a_plain_journey() -> None:
    own = [Span("admission", 10.0, 10.1), Span("llm_queue", 10.6, 10.7), Span("llm_prefill", 10.7, 11.0)]
    item = ItemSpans(10.55, [Span("media_fetch", 10.1, 10.3), Span("vision_encode", 10.35, 10.55)])
    folded = fold(10.0, 11.0, own, [item])
    assert folded.stages == pytest.approx(
        {"admission": 100, "media_fetch": 200, "vision_encode": 200, "llm_queue": 100, "llm_prefill": 300}
    )
    assert folded.unattributed_ms == pytest.approx(100)


def test_only_the_item_that_was_ready_last_counts() -> None:
    quick = ItemSpans(1.2, [Span("media_fetch", 1.0, 1.2)])
    slow = ItemSpans(1.9, [Span("media_decode", 1.0, 1.9)])
    for items, critical in (([quick, slow], 1), ([slow, quick], 0)):
        folded = fold(1.0, 2.0, [], items)
        assert folded.critical == critical
        assert folded.stages == pytest.approx({"media_decode": 900})


def test_an_item_that_never_became_ready_is_the_critical_one() -> None:
    ready = ItemSpans(1.9, [Span("media_fetch", 1.0, 1.9)])
    early = ItemSpans(None, [Span("media_fetch", 1.0, 1.1)])
    failed = ItemSpans(None, [Span("media_fetch", 1.0, 1.2), Span("media_decode", 1.2, 1.5)])
    assert critical_item([ready, early, failed]) == 2
    assert critical_item([]) is None


def test_shared_work_is_clipped_to_the_waiter_s_window() -> None:
    """Fetched from 0, decoded until 3; the waiter came at 2 and waited for the rest of the media decode only."""
    leader = ItemSpans(3.0, [Span("media_fetch", 0.0, 1.5), Span("media_decode", 1.5, 3.0)])
    folded = fold(2.0, 3.0, [], [leader])
    assert folded.stages == pytest.approx({"media_decode": 1000})
    assert folded.unattributed_ms == pytest.approx(0)


def test_overlap_goes_to_the_span_that_began_first() -> None:
    folded = fold(0.0, 3.0, [Span("llm_queue", 0.0, 2.0), Span("llm_prefill", 1.0, 3.0)], [])
    assert folded.stages == pytest.approx({"llm_queue": 2000, "llm_prefill": 1000})


def test_a_stage_in_no_time_happened_and_one_outside_the_window_did_not() -> None:
    folded = fold(
        1.0, 2.0, [Span("encoder_queue", 1.5, 1.5), Span("media_fetch", 0.0, 0.5), Span("llm_queue", 3, 4)], []
    )
    assert folded.stages == {"encoder_queue": 0.0}
    assert folded.unattributed_ms == 1000


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(ValueError, match="before it begins"):
        fold(2.0, 1.0, [], [])
