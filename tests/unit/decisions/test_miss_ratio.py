"""Estimated curves against exact ones, and the bounds on what an estimate may remember."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from foveate.bench.traces import chat, scans, unique, zipf
from foveate.decisions import miss_ratio
from foveate.decisions.cache_sizing import MULTIPLES
from foveate.decisions.miss_ratio import MissRatioCurve
from foveate.decisions.simulation import Content, StackDistances

Curve = MissRatioCurve[Content]


def run(curve: Curve, trace: list[Content], exact: StackDistances | None = None) -> None:
    """Tell the curve of every lookup and whether a least-recently-used cache of its capacity had it."""
    hits = (exact or StackDistances(trace)).hits(curve.capacity_bytes)
    for content, hit in zip(trace, hits, strict=True):
        curve.lookup(content, content.size, content.cost_ms, hit)


def errors(curve: Curve, exact: StackDistances) -> tuple[float, float]:
    """Mean absolute errors of hit ratio and saved share over the multiples of the capacity that are predicted, and unlimited."""
    capacities = [*(int(curve.capacity_bytes * multiple) for multiple in MULTIPLES), None]
    cost_ms = curve.seen().cost_ms
    pairs = [(got, exact.at(bytes_max)) for got, bytes_max in zip(curve.predict(capacities), capacities, strict=True)]
    return (
        statistics.mean(abs(got.hit_ratio - true.hit_ratio) for got, true in pairs),
        statistics.mean(abs(got.saved_ms / cost_ms - true.saved_share) for got, true in pairs),
    )


@pytest.mark.timeout(300)
def test_a_million_lookups_at_one_percent_within_a_hundredth() -> None:
    """Each seed has other hot contents, of which one percent has some or none: the mean over seeds is held, and how far one may be off."""
    hit_errors: list[float] = []
    traces = [zipf(1_000_000, 0.9, seed, contents=300_000) for seed in (11, 12, 13)]
    for trace in (*traces, chat(1_000_000, 11, conversations=2000)):
        exact = StackDistances(trace)
        curve = Curve(exact.bytes // 16, rate_max=0.01)
        run(curve, trace, exact)
        seen = curve.seen()
        assert (seen.lookups, seen.rate) == (1_000_000, pytest.approx(0.01))
        assert seen.sampled < 40_000
        hit_error, saved_error = errors(curve, exact)
        hit_errors.append(hit_error)
        assert saved_error < 0.02, "costs differ by a factor of sixty, so that a sample of their sum is coarser"
    assert statistics.mean(hit_errors) < 0.01
    assert max(hit_errors) < 0.015


@pytest.mark.parametrize(
    "trace",
    [
        zipf(60_000, 0.6, 1, contents=12_000),
        zipf(60_000, 1.2, 2, contents=30_000),
        chat(60_000, 3, conversations=120),
        scans(60_000, 0.9, 4, contents=6_000),
    ],
    ids=["Zipf 0.6", "Zipf 1.2", "chat", "scans"],
)
def test_the_sample_shrinks_to_its_bound_and_stays_accurate(trace: list[Content]) -> None:
    exact = StackDistances(trace)
    curve = Curve(exact.bytes // 16, samples_max=4000)
    run(curve, trace)
    assert curve.seen().followed <= 4000
    assert curve.seen().rate < 1
    assert max(errors(curve, exact)) < 0.01
    predicted = curve.predict([None])[0]
    assert predicted.bytes == pytest.approx(exact.bytes, rel=0.1)


def test_without_sampling_the_curve_is_exact_but_for_its_buckets() -> None:
    trace = zipf(20_000, 0.8, 1, contents=3_000)
    exact = StackDistances(trace)
    curve = Curve(exact.bytes // 8)
    run(curve, trace)
    assert max(errors(curve, exact)) < 0.001
    seen = curve.seen()
    assert (seen.lookups, seen.sampled, seen.rate) == (20_000, 20_000, 1.0)
    assert seen.misses_over_modelled == pytest.approx(1, abs=0.01)
    uses = Counter(trace)
    assert seen.seen_once == list(uses.values()).count(1) / len(uses)
    assert curve.predict([None])[0].bytes == exact.bytes
    assert curve.predict([exact.bytes // 2])[0].bytes == exact.bytes // 2


def test_a_digest_at_the_threshold_is_out_and_below_it_is_in() -> None:
    curve = Curve(100, rate_max=0.5)
    curve.lookup(Content("8" + "0" * 63, 10, 1.0), 10, 1.0, False)
    assert curve.seen().sampled == 0
    curve.lookup(Content("7" + "f" * 63, 10, 1.0), 10, 1.0, False)
    assert (curve.seen().sampled, curve.seen().lookups) == (1, 2)


def test_memory_is_bounded_whatever_the_traffic() -> None:
    """Media that never come back, ever more of them, with a hot set among them that stays in view."""
    hot = zipf(200, 0.5, 9, contents=50)
    curve = Curve(200 * 10**6, samples_max=300)
    for number in range(40):
        for content in (*unique(500, number), *hot):
            curve.lookup(content, content.size, content.cost_ms, number > 0 and content in hot)
        assert curve.seen().followed == len(curve._stack) <= 300
        assert len(curve._members) + len(curve._free) == len(curve._keys) < 600
        assert len(curve._pending) < 300
    assert curve.seen().rate > 0.01, "what is beyond the horizon makes way, not the sampling rate"
    assert curve.seen().seen_once > 0.95
    assert curve.predict([4 * 10**9])[0].hit_ratio == pytest.approx(200 / 700, abs=0.08)


def test_one_content_under_many_options_cannot_hold_the_sample() -> None:
    class Variant(Content, frozen=True, eq=False):
        pass

    curve = Curve(10**9, samples_max=10)
    for number in range(100):
        curve.lookup(Variant("c" * 64, 5, 1.0), 5, 1.0, False)
        curve.lookup(Content(f"{number:064x}", 5, 1.0), 5, 1.0, False)
        assert curve.seen().followed <= 10


def test_the_curve_is_that_of_what_the_cache_really_missed() -> None:
    """At today's capacity it says what was measured, whatever the sample holds by chance."""
    trace = zipf(50_000, 1.0, 3, contents=5_000)
    curve = Curve(StackDistances(trace).bytes // 10, rate_max=0.05)
    run(curve, trace)
    seen = curve.seen()
    today = curve.predict([curve.capacity_bytes])[0]
    assert today.hit_ratio == pytest.approx(seen.hits / seen.lookups, abs=0.001)
    assert today.saved_ms == pytest.approx(seen.saved_ms, rel=0.01)


def test_without_a_miss_in_the_sample_its_lack_of_lookups_is_taken_for_hits() -> None:
    curve = Curve(1000)
    followed, other = Content("0" * 64, 10, 2.0), Content("f" * 64, 10, 2.0)
    curve._set_threshold(1 << 63)
    for number in range(50):
        curve.lookup(followed, 10, 2.0, number > 0)
        for _ in range(3):
            curve.lookup(other, 10, 2.0, number > 0)
    curve.seen()
    curve._lookups.sampled -= 2.0
    assert curve.predict([1000])[0].hit_ratio == 1.0
    assert curve.predict([1])[0].hit_ratio == 0.0


def test_old_lookups_count_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(miss_ratio, "HALVE_AT", 4000)
    curve = Curve(10**12)
    run(curve, unique(20_000, 1))
    assert curve.predict([None])[0].hit_ratio == 0
    hot = zipf(20_000, 0.5, 2, contents=50)
    run(curve, hot)
    assert curve.seen().lookups < 4000
    assert curve.predict([None])[0].hit_ratio > 0.9


def test_an_unused_curve_predicts_nothing() -> None:
    curve = Curve(100)
    assert [point.hit_ratio for point in curve.predict([0, 100, None])] == [0, 0, 0]
    assert curve.seen().lookups == 0
    for wrong in ({"rate_max": 0.0}, {"rate_max": 1.5}, {"samples_max": 0}):
        with pytest.raises(ValueError, match="sampling rate"):
            Curve(100, **wrong)  # type: ignore[arg-type]
