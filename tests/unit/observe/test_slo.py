"""The books of the objectives: windows, and text and multimodal apart."""

from __future__ import annotations

from collections import Counter

import pytest

from foveate.decisions.objectives import Targets
from foveate.observe.ledger import RequestLedger
from foveate.observe.metrics import Metrics
from foveate.observe.observer import Observer
from foveate.observe.records import LedgerRecord, Outcome
from foveate.observe.slo import Objectives


class Clock:
    def __init__(self) -> None:
        self.now = 100_000.0

    def __call__(self) -> float:
        return self.now


def ended(ttft_ms: float | None, outcome: Outcome = "answered", *, images: int = 0) -> LedgerRecord:
    ledger = RequestLedger(request_id="r", model="m", received_at=0.0, images=images)
    if ttft_ms is not None:
        ledger.first_token(ttft_ms / 1e3)
    return ledger.end(outcome, error_code=None, at=1.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_windows_forget(clock: Clock) -> None:
    counted: Counter[tuple[str, ...]] = Counter()
    books = Objectives({"text": Targets(100.0)}, clock, lambda *labels: counted.update([labels]))
    for _ in range(30):
        books.note(ended(500.0))
    clock.now += 1200
    for _ in range(10):
        books.note(ended(50.0))
    report = books.report()
    assert report.multimodal is None
    assert report.text is not None
    windows = report.text.windows
    assert [windows[name].requests for name in ("5m", "30m", "1h", "6h")] == [10, 40, 40, 40]
    assert (windows["5m"].attainment, windows["1h"].attainment) == (1.0, 0.25)
    assert windows["1h"].burn_rate == pytest.approx(15)
    assert windows["5m"].goodput == pytest.approx(10 / 300)
    assert windows["5m"].tpot_attainment is None
    assert report.text.alert == "ticket", "the trouble is over, so the short window of the page says no"
    clock.now += 7 * 3600
    later = books.report().text
    assert later is not None
    assert later.windows["6h"].requests == 0
    assert counted == {
        ("text", "ttft", "bad"): 30,
        ("text", "all", "bad"): 30,
        ("text", "ttft", "good"): 10,
        ("text", "all", "good"): 10,
    }


def test_a_bad_hour_pages(clock: Clock) -> None:
    books = Objectives({"text": Targets(100.0)}, clock, lambda *labels: None)
    for _ in range(5):
        books.note(ended(None, "failed"))
    report = books.report().text
    assert report is not None
    assert report.alert == "page"


def test_what_does_not_count(clock: Clock) -> None:
    books = Objectives({"text": Targets(5000.0), "multimodal": Targets(5000.0)}, clock, lambda *labels: None)
    for outcome in ("refused", "cancelled", "estimated"):
        books.note(ended(None, outcome))
    books.note(ended(10.0, images=1))
    report = books.report()
    assert report.text is not None
    assert report.multimodal is not None
    assert (report.text.windows["6h"].requests, report.multimodal.windows["6h"].requests) == (0, 1)
    assert report.text.windows["6h"].attainment is None


def test_room_is_bounded(clock: Clock) -> None:
    books = Objectives({"text": Targets(100.0)}, clock, lambda *labels: None)
    for _ in range(5000):
        books.note(ended(10.0))
        clock.now += 10
    assert len(books._books["text"].slots) <= 2161
    assert books.gauge(lambda window: float(window.requests))["text", "6h"] == pytest.approx(2160, abs=1)


def test_the_observer_counts_what_was_judged() -> None:
    metrics = Metrics()
    observer = Observer(metrics, None, targets={"multimodal": Targets(100.0)})
    for record in (ended(50.0, images=1), ended(500.0, images=1), ended(500.0)):
        observer.ended(record)
    text = metrics.exposition()[0].decode()
    assert 'foveate_slo_requests_total{modality="multimodal",objective="ttft",verdict="bad"} 1.0' in text
    assert 'foveate_slo_requests_total{modality="text"' not in text
