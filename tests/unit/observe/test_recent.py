from __future__ import annotations

import pytest

from foveate.core.stages import Span, Stage
from foveate.observe.ledger import RequestLedger
from foveate.observe.recent import ITEMS, KEPT_SECONDS, SLOT_SECONDS, SLOTS, SLOWEST, RecentRequests
from foveate.observe.records import LedgerRecord, Outcome


class Wall:
    def __init__(self) -> None:
        self.now = 90_000.0

    def __call__(self) -> float:
        return self.now


def record(
    ttft_ms: float, *, images: int = 0, name: str = "r", stage: Stage = "llm_prefill", outcome: Outcome = "answered"
) -> LedgerRecord:
    ledger = RequestLedger(request_id=name, model="demo", received_at=10.0, images=images)
    first = 10.0 + ttft_ms / 1e3
    for index in range(images):
        ledger.item(index).span(Span("media_decode", 10.0, 10.0))
        ledger.item(index).ready(10.0)
    ledger.span(Span(stage, 10.0, first))
    if outcome == "answered":
        ledger.first_token(first)
    return ledger.end(outcome, error_code=None, at=first)


@pytest.fixture
def wall() -> Wall:
    return Wall()


def test_percentiles_are_near_what_was_noted(wall: Wall) -> None:
    recent = RecentRequests(wall)
    for ms in range(1, 1001):
        recent.note(record(float(ms)))
    whole = recent.report()["text"].whole
    assert whole.requests == 1000
    for found, wanted in zip(whole.series["ttft"], (500, 950, 990), strict=True):
        assert found == pytest.approx(wanted, rel=0.061)
    assert whole.series["llm_prefill"] == whole.series["ttft"]
    assert "vision_encode" not in whole.series


def test_times_outside_the_buckets_are_counted_in_the_outermost(wall: Wall) -> None:
    recent = RecentRequests(wall)
    recent.note(record(0.0))
    recent.note(record(1e7))
    low, _, high = recent.report()["text"].whole.series["ttft"]
    assert low < 0.02
    assert high > 9e4


def test_text_and_multimodal_are_apart(wall: Wall) -> None:
    recent = RecentRequests(wall)
    recent.note(record(10.0))
    recent.note(record(500.0, images=1, name="picture"))
    report = recent.report()
    assert [report[name].whole.requests for name in ("text", "multimodal")] == [1, 1]
    assert [line.id for line in report["multimodal"].slowest] == ["picture"]


def test_slots_close_and_what_is_old_goes_out_of_the_whole(wall: Wall) -> None:
    recent = RecentRequests(wall)
    recent.note(record(1000.0, name="old"))
    wall.now += SLOT_SECONDS
    recent.note(record(10.0))
    found = recent.report()["text"]
    assert [slot.requests for slot in found.slots] == [1, 1]
    assert found.slots[1].start - found.slots[0].start == SLOT_SECONDS
    wall.now += SLOT_SECONDS * (SLOTS - 1)
    found = recent.report()["text"]
    assert (found.whole.requests, len(found.slots)) == (1, 1)
    assert found.whole.series["ttft"][2] < 12
    wall.now += SLOT_SECONDS * SLOTS + KEPT_SECONDS
    found = recent.report()["text"]
    assert (found.whole.requests, found.whole.series, found.slots, found.slowest) == (0, {}, (), ())


def test_the_slowest_are_kept_whatever_came_after_them(wall: Wall) -> None:
    recent = RecentRequests(wall)
    for ms in range(100, 100 + 3 * SLOWEST):
        recent.note(record(float(ms), name=f"r{ms}"))
        wall.now += 1
    for _ in range(100):
        recent.note(record(1.0))
    slowest = recent.report()["text"].slowest
    assert [line.id for line in slowest] == [f"r{99 + 3 * SLOWEST - back}" for back in range(SLOWEST)]


def test_one_that_failed_is_as_slow_as_its_client_waited_and_no_latency(wall: Wall) -> None:
    recent = RecentRequests(wall)
    recent.note(record(5000.0, name="failed", outcome="failed"))
    recent.note(record(9000.0, name="estimated", outcome="estimated"))
    found = recent.report()["text"]
    assert [line.id for line in found.slowest] == ["failed"]
    assert found.whole.requests == 0


def test_more_items_than_a_log_line_has_but_not_all(wall: Wall) -> None:
    recent = RecentRequests(wall)
    recent.note(record(10.0, images=ITEMS + 3))
    (line,) = recent.report()["multimodal"].slowest
    assert (len(line.items), line.items_omitted) == (ITEMS, 3)
