"""Both caches behind single flight, at random, with callers that go away: against plain sets of what was taken, leased and given back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Protocol

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from foveate.caches.encoder import EncoderCache, EncoderEntry
from foveate.caches.keys import EncoderKey, ProcessorKey
from foveate.caches.processor import ProcessorCache, ProcessorEntry
from foveate.caches.single_flight import SingleFlight
from foveate.core.media import ImageOptions, PreparedImage
from foveate.core.memory import Slot, TensorBundle


class Slots:
    """An arena that counts how often each slot came back."""

    def __init__(self) -> None:
        self.taken: list[Slot] = []
        self.returned: Counter[Slot] = Counter()

    def take(self, size: int) -> Slot:
        slot = Slot(1000 * len(self.taken), size)
        self.taken.append(slot)
        return slot

    def release(self, slot: Slot) -> None:
        self.returned[slot] += 1

    @property
    def open(self) -> set[Slot]:
        return {slot for slot in self.taken if not self.returned[slot]}


class Kind(Protocol):
    """What differs between the two caches."""

    def cache(self, capacity: int, slots: Slots) -> Any: ...

    def key(self, content: int) -> Any: ...

    def entry(self, slot: Slot) -> Any: ...

    def slot(self, entry: Any) -> Slot: ...


class OfEncoder:
    def cache(self, capacity: int, slots: Slots) -> EncoderCache:
        return EncoderCache(capacity, slots.release)

    def key(self, content: int) -> EncoderKey:
        return EncoderKey(f"{content:064x}", "processor", ImageOptions(), "encoder")

    def entry(self, slot: Slot) -> EncoderEntry:
        return EncoderEntry("<image>", 1, {}, TensorBundle(slot, (), slot.size), {"vision_encode": 3.0}, "")

    def slot(self, entry: EncoderEntry) -> Slot:
        return entry.embeddings.slot


class OfProcessor:
    def cache(self, capacity: int, slots: Slots) -> ProcessorCache:
        return ProcessorCache(capacity, slots.release)

    def key(self, content: int) -> ProcessorKey:
        return ProcessorKey(f"{content:064x}", "processor", ImageOptions())

    def entry(self, slot: Slot) -> ProcessorEntry:
        return ProcessorEntry(
            PreparedImage("<image>", 1, TensorBundle(slot, (), slot.size), {}, ()), {"mm_processor": 2.0}
        )

    def slot(self, entry: ProcessorEntry) -> Slot:
        return entry.prepared.inputs.slot


class Work:
    """One flight: it takes its slot at once, and ends when the test says so."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Books(RuleBasedStateMachine):
    """Requests ask, work ends well or badly, callers give up or give back, and the cache is emptied from other sides."""

    contents = st.integers(0, 4)

    @initialize(capacity=st.integers(0, 60), kind=st.sampled_from((OfEncoder(), OfProcessor())))
    def begin(self, capacity: int, kind: Kind) -> None:
        self.loop = asyncio.new_event_loop()
        self.kind, self.capacity, self.slots = kind, capacity, Slots()
        self.cache = kind.cache(capacity, self.slots)
        self.flights: SingleFlight[int, Any] = SingleFlight(lambda made: made.release())
        self.work: dict[int, Work] = {}
        self.asking: list[tuple[int, asyncio.Task[Any]]] = []
        self.leases: list[Any] = []
        self.hits = self.misses = 0

    def turn(self) -> None:
        """Let everything that can run do so."""
        for _ in range(6):
            self.loop.run_until_complete(asyncio.sleep(0))
        for content, task in [pair for pair in self.asking if pair[1].done()]:
            self.asking.remove((content, task))
            if not task.cancelled() and task.exception() is None:
                self.leases.append(task.result())

    async def ask(self, content: int, size: int) -> Any:
        lease = self.cache.get(self.kind.key(content))
        if lease is not None:
            return lease
        lease, _ = await self.flights.share(content, lambda: self.make(content, size), lambda made: made.again())
        return lease

    async def make(self, content: int, size: int) -> Any:
        slot = self.slots.take(size)
        work = self.work[content] = Work(slot)
        try:
            if not await work.end:
                raise OSError("the work failed")
        except BaseException:
            self.slots.release(slot)
            raise
        finally:
            if self.work.get(content) is work:
                del self.work[content]
        entry = self.kind.entry(slot)
        lease = self.cache.put(self.kind.key(content), entry, size)
        return Loose(slot, self.slots) if lease is None else lease

    @rule(content=contents, size=st.integers(1, 30))
    def request(self, content: int, size: int) -> None:
        hit = self.kind.key(content) in self.cache
        self.hits += hit
        self.misses += not hit
        self.asking.append((content, self.loop.create_task(self.ask(content, size))))
        self.turn()

    @precondition(lambda self: self.work)
    @rule(data=st.data(), well=st.booleans())
    def finish(self, data: st.DataObject, well: bool) -> None:
        work = self.work[data.draw(st.sampled_from(sorted(self.work)))]
        work.end.set_result(well)
        self.turn()
        assert well or work.slot not in self.slots.open

    @precondition(lambda self: self.asking)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.asking) - 1))
        content, task = self.asking[number]
        others = sum(other == content for other, _ in self.asking) - 1
        task.cancel()
        self.turn()
        assert task.cancelled()
        assert (content in self.work) == (others > 0), "the work ends with the last who waits for it, and not before"

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        lease.release()
        lease.release()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def pin_again(self, data: st.DataObject) -> None:
        self.leases.append(data.draw(st.sampled_from(self.leases)).again())

    @rule(content=contents)
    def drop(self, content: int) -> None:
        self.cache.drop(self.kind.key(content))
        assert self.kind.key(content) not in self.cache

    @rule(content=contents)
    def demote(self, content: int) -> None:
        if isinstance(self.cache, ProcessorCache):
            self.cache.demote(self.kind.key(content))

    @rule(wanted=st.integers(1, 30))
    def shrink(self, wanted: int) -> None:
        leased = {self.slot_of(lease) for lease in self.leases}
        before = self.slots.open
        freed = self.cache.shrink(wanted)
        assert freed == sum(slot.size for slot in before - self.slots.open)
        assert not leased & (before - self.slots.open)
        assert freed >= wanted or self.cache.stats().bytes == sum(slot.size for slot in leased & self.kept())

    @rule(whole=st.booleans())
    def empty(self, whole: bool) -> None:
        self.cache.clear() if whole else self.cache.drop_version("processor")
        assert self.cache.keys() == []

    def slot_of(self, lease: Any) -> Slot:
        return lease.slot if isinstance(lease, Loose) else self.kind.slot(lease.entry)

    def kept(self) -> set[Slot]:
        """Slots that belong to the cache: not those of work under way, nor those it had no room for."""
        loose = {lease.slot for lease in self.leases if isinstance(lease, Loose)}
        return self.slots.open - loose - {work.slot for work in self.work.values()}

    @invariant()
    def books(self) -> None:
        if not hasattr(self, "cache"):
            return
        stats = self.cache.stats()
        assert stats.bytes == sum(slot.size for slot in self.kept()) <= self.capacity
        leased = {self.slot_of(lease) for lease in self.leases}
        assert leased <= self.slots.open
        assert stats.pinned == len(leased & self.kept())
        assert (stats.hits, stats.misses) == (self.hits, self.misses)
        assert max(self.slots.returned.values(), default=1) == 1, "a slot was given back twice"

    def teardown(self) -> None:
        """When all have gone and the cache is emptied, every slot is back, once."""
        if not hasattr(self, "cache"):
            return
        for _, task in self.asking:
            task.cancel()
        self.turn()
        self.loop.run_until_complete(self.flights.aclose())
        for lease in self.leases:
            lease.release()
        self.cache.clear()
        assert self.slots.returned == Counter(dict.fromkeys(self.slots.taken, 1))
        assert (self.cache.stats().bytes, self.cache.stats().pinned, len(self.flights)) == (0, 0, 0)
        self.loop.close()


class Loose:
    """The lease of what was made and not kept. Its slot goes back with the last use."""

    def __init__(self, slot: Slot, slots: Slots, users: list[int] | None = None) -> None:
        self.slot, self._slots = slot, slots
        self._users = users if users is not None else [0]
        self._users[0] += 1
        self._open = True

    def again(self) -> Loose:
        return Loose(self.slot, self._slots, self._users)

    def release(self) -> None:
        if self._open:
            self._open = False
            self._users[0] -= 1
            if not self._users[0]:
                self._slots.release(self.slot)


Books.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestBooks = Books.TestCase
