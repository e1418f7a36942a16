"""What a curve is read as."""

from __future__ import annotations

import msgspec
import pytest

from foveate.bench.traces import unique, zipf
from foveate.decisions.cache_sizing import MULTIPLES, Advice, advise
from foveate.decisions.miss_ratio import MissRatioCurve
from foveate.decisions.simulation import Content, StackDistances, replay


def advice(trace: list[Content], capacity: int) -> Advice:
    """What is said of a cache whose hits are those of the model."""
    curve: MissRatioCurve[Content] = MissRatioCurve(capacity)
    hit_ratio = replay(trace, "lru", capacity).hit_ratio
    seen: set[str] = set()
    for content in trace:
        curve.lookup(content, content.size, content.cost_ms, content.digest in seen and hit_ratio > 0)
        seen.add(content.digest)
    return advise(curve)


def test_media_that_never_come_back_need_no_cache() -> None:
    said = advice(unique(3000, 1), 10**9)
    assert said.verdict == "no_cache_helps"
    assert said.words.startswith("No cache will help: 100.0% of the media were seen once only")


def test_media_of_which_few_come_back_often_do() -> None:
    """Nearly all media are seen once, and yet half of the lookups could hit: the share of media alone says nothing."""
    hot = zipf(3000, 0.5, 2, contents=20)
    said = advice([content for pair in zip(unique(3000, 1), hot, strict=True) for content in pair], 10**9)
    assert said.seen.seen_once > 0.99
    assert said.verdict != "no_cache_helps"


def test_few_lookups_say_nothing() -> None:
    said = advice(zipf(999, 0.9, 1, contents=50), 10**9)
    assert said.verdict == "too_early"
    assert "999 lookups" in said.words


@pytest.mark.parametrize(("part", "verdict"), [(0.02, "larger_helps"), (30.0, "smaller_does"), (0.99, "right")])
def test_the_capacity_is_compared_with_what_is_needed(part: float, verdict: str) -> None:
    trace = [content for _ in range(20) for content in unique(300, 1)]
    contents = {content.digest: content for content in trace}
    trace = [contents[content.digest] for content in trace]
    said = advice(
        trace,
        int(StackDistances(trace).bytes * 1.02 * part) if part != 0.99 else int(StackDistances(trace).bytes * 1.02),
    )
    assert said.verdict == verdict
    assert "B answers" in said.words


def test_without_a_cache_yet_one_is_sized_all_the_same() -> None:
    said = advice(zipf(3000, 0.9, 1, contents=200), 0)
    assert said.verdict == "larger_helps"
    assert "an unlimited cache" in said.words
    assert said.points[-1].predicted.hit_ratio > 0.9


def test_the_points_are_the_multiples_and_unlimited() -> None:
    said = advice(zipf(2000, 0.9, 1, contents=200), 10**8)
    assert [point.multiple for point in said.points] == [*MULTIPLES, None]
    assert [point.capacity_bytes for point in said.points][:3] == [25 * 10**6, 50 * 10**6, 10**8]
    ratios = [point.predicted.hit_ratio for point in said.points]
    assert ratios == sorted(ratios)
    assert msgspec.json.decode(msgspec.json.encode(said), type=Advice) == said
