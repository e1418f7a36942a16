"""The media cache's own bookkeeping: what counts as what, replacement, its bound in entries, and use after it was dropped."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.caches.test_encoder import Slots

from foveate.caches.keys import MediaKey
from foveate.caches.media import MediaCache, MediaEntry
from foveate.core.memory import Slot
from foveate.decisions.freshness import Terms
from foveate.decisions.http_fields import Fields

SOON = Terms(100.0, None, Fields())
LATER = Terms(200.0, None, Fields())


def key(number: int, scope: str = "") -> MediaKey:
    return MediaKey.of(f"https://img.example/{number}.png", scope)


def entry(slot: Slot, asked_at: float = 0.0, cost_ms: float = 20.0) -> MediaEntry:
    address = ip_address("192.0.2.1")
    return MediaEntry(slot, "d" * 64, SOON, (address,), "img.example", "/", asked_at, {"media_fetch": cost_ms})


def keep(cache: MediaCache, slots: Slots, number: int, size: int = 10, asked_at: float = 0.0) -> bool:
    slot = slots.allocate(size)
    lease = cache.keep(key(number), entry(slot, asked_at), size)
    if lease is None:
        slots.release(slot)
        return False
    lease.release()
    return True


def test_a_key_is_the_whole_url_and_the_scope() -> None:
    urls = ["https://h/a", "https://h/a?", "https://h/a?s=1", "http://h/a", "https://h:8443/a"]
    keys = [MediaKey.of(url, scope) for url in urls for scope in ("", "t")]
    assert len({each.name() for each in keys}) == len(keys)
    assert all(len(each.digest) == 64 for each in keys)
    assert "h/a" not in repr(keys)


def test_what_counts_as_what() -> None:
    slots = Slots()
    cache = MediaCache(100, slots.release)
    cache.fetched(changed=False)
    keep(cache, slots, 1)
    lease = cache.find(key(1))
    assert lease is not None
    assert cache.stats().hits == 0, "a look-up is counted when it is known what became of it"
    cache.used(key(1), lease.entry)
    cache.renewed(key(1), lease.entry, LATER, spent_ms=5.0)
    assert lease.entry.terms == LATER
    lease.release()
    cache.fetched(changed=True)
    for source in ("origin", "cache", "revalidated"):
        cache.followed(source)  # type: ignore[arg-type]
    stats, counts = cache.stats(), cache.counts()
    assert (stats.hits, stats.misses, stats.shared) == (2, 3, 1)
    assert (counts.unchanged, counts.changed) == (2, 1)
    assert stats.saved_ms == {"media_fetch": 20.0 + 15.0}
    assert [(held.hits, held.used_at > 0) for held in cache.entries()] == [(2, True)]


def test_asking_that_took_longer_than_fetching_saves_nothing() -> None:
    slots = Slots()
    cache = MediaCache(100, slots.release)
    keep(cache, slots, 1)
    held = cache.entries()[0]
    cache.renewed(key(1), held.value, LATER, spent_ms=1000.0)
    assert cache.stats().saved_ms == {"media_fetch": 0.0}


def test_a_newer_answer_replaces_an_older_one_and_never_the_other_way_round() -> None:
    slots = Slots()
    cache = MediaCache(100, slots.release)
    assert keep(cache, slots, 1, 10, asked_at=1.0)
    assert keep(cache, slots, 1, 20, asked_at=2.0)
    assert not keep(cache, slots, 1, 30, asked_at=1.5)
    assert [held.size for held in cache.entries()] == [20]
    assert cache.stats().evictions["replaced"] == 1
    assert {slot.size for slot in slots.open} == {20}


def test_what_is_in_use_is_neither_evicted_nor_freed_when_replaced() -> None:
    slots = Slots()
    cache = MediaCache(25, slots.release)
    keep(cache, slots, 1, asked_at=1.0)
    lease = cache.find(key(1))
    assert lease is not None
    old = lease.entry.slot
    keep(cache, slots, 1, asked_at=2.0)
    assert old in slots.open
    assert cache.stats().bytes == 20
    cache.clear()
    assert old in slots.open
    # What became of it meanwhile does not harm its users, nor is it counted for a key that it no longer has.
    cache.used(key(1), lease.entry)
    lease.release()
    assert not slots.open


def test_small_files_are_bounded_in_number() -> None:
    slots = Slots()
    cache = MediaCache(10_000, slots.release, entries_max=3)
    for number in range(10):
        keep(cache, slots, number, 1)
    assert cache.stats().entries == 3
    assert len(slots.open) == 3
    assert [key(number) in cache for number in range(10)] == [False] * 7 + [True] * 3


@pytest.mark.parametrize("capacity", [0, 5])
def test_what_does_not_fit_stays_the_caller_s(capacity: int) -> None:
    slots = Slots()
    cache = MediaCache(capacity, slots.release)
    assert cache.on is (capacity > 0)
    assert not keep(cache, slots, 1, 10)
    assert not slots.open


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.floats(0, 9), st.sampled_from("kfdsr")), max_size=60)
)
def test_its_bytes_are_those_of_the_slots_that_it_has(steps: list[tuple[int, int, float, str]]) -> None:
    """Whatever is kept, found, dropped, shrunk and released in whatever order."""
    slots = Slots()
    cache = MediaCache(100, slots.release, entries_max=4)
    open_leases = []
    for number, size, asked_at, what in steps:
        if what == "k":
            keep(cache, slots, number, size, asked_at)
        elif what == "f" and (lease := cache.find(key(number))) is not None:
            open_leases.append(lease)
        elif what == "d":
            cache.drop(key(number))
        elif what == "s":
            cache.shrink(size)
        elif what == "r" and open_leases:
            open_leases.pop().release()
        assert cache.stats().bytes == sum(slot.size for slot in slots.open) <= 100
    for lease in open_leases:
        lease.release()
    cache.clear()
    assert not slots.open
