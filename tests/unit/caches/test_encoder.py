from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from foveate.caches.encoder import EncoderCache, EncoderEntry
from foveate.caches.keys import EncoderKey
from foveate.caches.lease import Lease
from foveate.core.media import ImageOptions
from foveate.core.memory import Slot, TensorBundle
from foveate.core.stages import Stage


class Slots:
    """Hands out slots and takes them back, each exactly once."""

    def __init__(self) -> None:
        self.open: set[Slot] = set()
        self._next = 0

    def allocate(self, size: int) -> Slot:
        slot = Slot(self._next, size)
        self._next += max(size, 1)
        self.open.add(slot)
        return slot

    def release(self, slot: Slot) -> None:
        assert slot in self.open, f"{slot} was released twice, or never allocated"
        self.open.remove(slot)


def key(content: int, version: str = "v1") -> EncoderKey:
    return EncoderKey(f"{content:064x}", "processor-1", ImageOptions(), version)


def entry(slot: Slot, cost: float = 2.0) -> EncoderEntry:
    embeddings = TensorBundle(slot, (), slot.size)
    costs: dict[Stage, float] = {"media_decode": cost, "mm_processor": 1.0, "vision_encode": 5.0}
    return EncoderEntry("<image>", 4, {"image_grid_thw": [1, 2, 2]}, embeddings, costs, "")


def keep(cache: EncoderCache, slots: Slots, content: int, size: int, version: str = "v1") -> None:
    lease = cache.put(key(content, version), entry(slots.allocate(size)), size)
    assert lease is not None
    lease.release()


def test_a_hit_saves_its_stages_and_a_miss_is_counted() -> None:
    slots = Slots()
    cache = EncoderCache(100, slots.release)
    assert cache.get(key(1)) is None
    keep(cache, slots, 1, 40)
    for _ in range(3):
        lease = cache.get(key(1))
        assert lease is not None
        assert lease.entry.meta == {"image_grid_thw": [1, 2, 2]}
        lease.release()
    cache.shared()
    stats = cache.stats()
    assert (stats.entries, stats.bytes, stats.capacity_bytes, stats.pinned) == (1, 40, 100, 0)
    assert (stats.hits, stats.misses, stats.shared) == (3, 1, 1)
    assert stats.saved_ms == {"media_decode": 6.0, "mm_processor": 3.0, "vision_encode": 15.0}
    assert key(1) in cache
    assert key(2) not in cache
    assert cache.keys() == [key(1)]
    assert (cache.stats().hits, cache.stats().misses) == (3, 1)


def test_stats_are_a_copy() -> None:
    slots = Slots()
    cache = EncoderCache(100, slots.release)
    before = cache.stats()
    keep(cache, slots, 1, 90)
    keep(cache, slots, 2, 90)
    assert before.evictions["capacity"] == 0
    assert cache.stats().evictions["capacity"] == 1


def test_what_does_not_fit_stays_the_caller_s() -> None:
    slots = Slots()
    cache = EncoderCache(100, slots.release)
    oversize = slots.allocate(101)
    assert cache.put(key(1), entry(oversize), 101) is None
    pin = cache.put(key(2), entry(slots.allocate(60)), 60)
    crowded = slots.allocate(50)
    assert cache.put(key(3), entry(crowded), 50) is None
    assert pin is not None
    assert {oversize, crowded} < slots.open
    assert (cache.stats().oversize, cache.stats().crowded) == (1, 1)


def test_the_older_entry_stays_and_the_new_slot_is_released() -> None:
    slots = Slots()
    cache = EncoderCache(100, slots.release)
    first, second = slots.allocate(10), slots.allocate(10)
    one = cache.put(key(1), entry(first), 10)
    other = cache.put(key(1), entry(second), 10)
    assert one is not None
    assert other is not None
    assert other.entry is one.entry
    assert slots.open == {first}
    assert cache.stats().hits == 0


def test_the_least_recently_used_goes_first() -> None:
    slots = Slots()
    cache = EncoderCache(100, slots.release)
    for content in (1, 2, 3):
        keep(cache, slots, content, 30)
    lease = cache.get(key(1))
    assert lease is not None
    lease.release()
    keep(cache, slots, 4, 30)
    assert cache.keys() == [key(1), key(3), key(4)]


def test_a_version_goes_and_the_other_stays() -> None:
    slots = Slots()
    cache = EncoderCache(100, slots.release)
    keep(cache, slots, 1, 10, "v1")
    keep(cache, slots, 1, 10, "v2")
    lease = cache.get(key(1, "v1"))
    cache.drop_version("v1")
    assert cache.get(key(1, "v1")) is None
    assert cache.keys() == [key(1, "v2")]
    assert len(slots.open) == 2, "the dropped entry is still leased"
    assert lease is not None
    lease.release()
    assert len(slots.open) == 1
    assert cache.stats().evictions["version"] == 1
    cache.drop_version("processor-1")
    assert cache.keys() == []


def test_shrink_tells_what_it_freed() -> None:
    slots = Slots()
    cache = EncoderCache(100, slots.release)
    for content in (1, 2, 3):
        keep(cache, slots, content, 30)
    lease = cache.get(key(2))
    assert cache.shrink(31) == 60
    assert cache.shrink(1) == 0
    assert cache.keys() == [key(2)]
    assert lease is not None


class Model(RuleBasedStateMachine):
    """Random use; the arena notices a slot that is released twice, or too early, or never."""

    leases = Bundle("leases")
    contents = st.integers(0, 5)

    @initialize(capacity=st.integers(0, 60))
    def begin(self, capacity: int) -> None:
        self.slots = Slots()
        self.cache = EncoderCache(capacity, self.slots.release)
        self.capacity = capacity
        self.given: list[Lease[Any]] = []

    def took(self, lease: Lease[Any] | None) -> Lease[Any] | None:
        if lease is not None:
            self.given.append(lease)
        return lease

    @rule(target=leases, content=contents, size=st.integers(0, 40))
    def put(self, content: int, size: int) -> Lease[Any] | None:
        slot = self.slots.allocate(size)
        lease = self.cache.put(key(content), entry(slot), size)
        if lease is None:
            self.slots.release(slot)
        return self.took(lease)

    @rule(target=leases, content=contents)
    def get(self, content: int) -> Lease[Any] | None:
        expected = key(content) in self.cache
        lease = self.cache.get(key(content))
        assert (lease is not None) == expected
        return self.took(lease)

    @rule(target=leases, lease=leases)
    def again(self, lease: Lease[Any] | None) -> Lease[Any] | None:
        return self.took(lease.again()) if lease is not None and lease.open else None

    @rule(lease=consumes(leases))
    def release(self, lease: Lease[Any] | None) -> None:
        if lease is not None:
            lease.release()
            lease.release()

    @rule(content=contents)
    def drop(self, content: int) -> None:
        self.cache.drop(key(content))

    @rule(wanted=st.integers(0, 30))
    def shrink(self, wanted: int) -> None:
        before = self.cache.stats().bytes
        assert self.cache.shrink(wanted) == before - self.cache.stats().bytes

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        assert self.cache.stats().entries == 0

    @rule()
    def drop_version(self) -> None:
        self.cache.drop_version("v1")

    @invariant()
    def books(self) -> None:
        stats = self.cache.stats()
        assert stats.bytes == sum(slot.size for slot in self.slots.open) <= self.capacity
        leased = {lease.entry.embeddings.slot for lease in self.given if lease.open}
        assert leased <= self.slots.open
        assert stats.pinned == len(leased)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for lease in self.given:
            lease.release()
        self.cache.clear()
        assert self.slots.open == set()
        assert (self.cache.stats().bytes, self.cache.stats().pinned) == (0, 0)


Model.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestModel = Model.TestCase


def test_the_policy_decides_what_goes_first_by_what_an_entry_cost_and_its_bytes() -> None:
    slots = Slots()
    for policy, gone in (("lru", 1), ("gdsf", 2)):
        cache = EncoderCache(100, slots.release, policy=policy)  # type: ignore[arg-type]
        for content, size, cost in ((1, 40, 900.0), (2, 40, 1.0), (3, 40, 1.0)):
            lease = cache.put(key(content), entry(slots.allocate(size), cost), size)
            assert lease is not None
            lease.release()
        assert key(gone) not in cache
        assert len(cache.keys()) == 2
