"""What is told of a cache: its entries, and what other capacities would do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.caches.test_encoder import Slots, entry, keep, key

from foveate.bench.traces import zipf
from foveate.caches.encoder import EncoderCache
from foveate.core.media import ImageOptions


def ask(cache: EncoderCache, slots: Slots, content: int, size: int) -> None:
    """Look a content up as a request does, and make it when it is not there."""
    lease = cache.get(key(content))
    if lease is None:
        keep(cache, slots, content, size)
    else:
        lease.release()


def test_entries_tell_their_hits_their_last_use_and_what_they_really_occupy() -> None:
    slots = Slots()
    cache = EncoderCache(1000, slots.release)
    for content, hits in ((1, 2), (2, 5), (3, 0), (4, 2)):
        keep(cache, slots, content, 64 * content)
        for _ in range(hits):
            ask(cache, slots, content, 1)
    entries = cache.entries()
    assert [(held.key, held.hits, held.size) for held in entries] == [
        (key(1), 2, 64), (key(2), 5, 128), (key(3), 0, 192), (key(4), 2, 256)
    ]  # fmt: skip
    times = [held.used_at for held in entries]
    assert times == sorted(times)
    assert sum(held.size for held in entries) == cache.stats().bytes == 640


def test_what_is_dropped_is_told_in_bytes() -> None:
    slots = Slots()
    cache = EncoderCache(1000, slots.release)
    keep(cache, slots, 1, 64)
    keep(cache, slots, 1, 128, version="v2")
    assert cache.drop(key(1, "v2"), "version") == 128
    assert cache.drop(key(1, "v2"), "version") == 0
    assert cache.stats().evictions["version"] == 1
    assert key(1) in cache


def test_every_look_up_feeds_the_curve_with_what_the_entry_cost_and_occupies() -> None:
    slots = Slots()
    cache = EncoderCache(100, slots.release, curve_rate=1.0)
    for content in (
        1,
        2,
        3,
        1,
        1,
        2,
    ):  # two entries fit: the fourth look-up misses, the fifth hits, the last one misses
        ask(cache, slots, content, 40)
    advice = cache.advice()
    assert advice is not None
    seen = advice.seen
    assert (seen.lookups, seen.hits, seen.followed) == (6, 1, 3)
    assert (seen.cost_ms, seen.saved_ms) == (48.0, 8.0)
    assert seen.seen_once == pytest.approx(1 / 3)
    points = {point.multiple: point.predicted for point in advice.points}
    assert points[2.0].hit_ratio == points[None].hit_ratio == pytest.approx(0.5)
    assert points[None].bytes == 120
    assert advice.verdict == "too_early"


def test_a_look_up_that_joined_work_in_flight_was_spared_it() -> None:
    slots = Slots()
    cache = EncoderCache(100, slots.release, curve_rate=1.0)
    assert cache.get(key(1)) is None
    assert cache.get(key(1)) is None
    keep(cache, slots, 1, 40)
    cache.joined(key(1), entry(slots.allocate(40)))
    advice = cache.advice()
    assert advice is not None
    assert (advice.seen.lookups, advice.seen.hits) == (2, 1)
    assert (cache.stats().hits, cache.stats().misses, cache.stats().shared) == (0, 2, 1)


def test_what_was_never_made_has_no_size_and_does_not_count() -> None:
    cache = EncoderCache(100, Slots().release, curve_rate=1.0)
    assert cache.get(key(1)) is None
    advice = cache.advice()
    assert advice is not None
    assert advice.seen.lookups == 0


def test_a_cache_without_a_curve_has_no_advice() -> None:
    assert EncoderCache(100, Slots().release).advice() is None


def test_a_cache_that_is_off_tells_what_an_unlimited_one_would_do() -> None:
    slots = Slots()
    cache = EncoderCache(0, slots.release, curve_rate=1.0)
    for number in range(2000):
        assert cache.get(key(number % 10)) is None
        assert cache.put(key(number % 10), entry(slots.allocate(64)), 64) is None
    advice = cache.advice()
    assert advice is not None
    assert advice.verdict == "larger_helps"
    assert advice.points[-1].predicted.hit_ratio == pytest.approx(0.995)


@pytest.mark.parametrize("policy", ["lru", "s3_fifo", "gdsf"])
def test_media_that_never_come_back_are_told_to_need_no_cache(policy: Any) -> None:
    slots = Slots()
    cache = EncoderCache(6400, slots.release, policy=policy, curve_rate=1.0)
    for content in range(1100):
        ask(cache, slots, content, 64)
    advice = cache.advice()
    assert advice is not None
    assert advice.verdict == "no_cache_helps"
    assert advice.words.startswith("No cache will help: 100.0% of the media were seen once only")


def test_the_curve_of_a_running_cache_agrees_with_it() -> None:
    slots = Slots()
    trace = zipf(20_000, 0.8, 3, contents=600)
    cache = EncoderCache(sum(content.size for content in set(trace)) // 8, slots.release, curve_rate=1.0)
    for content in trace:
        named = type(key(1))(content.digest, "p", ImageOptions(), "e")
        lease = cache.get(named)
        if lease is None:
            lease = cache.put(named, entry(slots.allocate(content.size), content.cost_ms), content.size)
        if lease is not None:
            lease.release()
    advice = cache.advice()
    assert advice is not None
    stats = cache.stats()
    predicted = {point.multiple: point.predicted for point in advice.points}
    assert predicted[1.0].hit_ratio == pytest.approx(stats.hits / (stats.hits + stats.misses), abs=0.01)
    assert predicted[1.0].saved_ms == pytest.approx(sum(stats.saved_ms.values()), rel=0.05)
    assert predicted[0.25].hit_ratio < predicted[1.0].hit_ratio < predicted[4.0].hit_ratio
