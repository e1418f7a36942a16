from __future__ import annotations

import fcntl
import mmap
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from foveate.core.errors import ArenaFull, Kind
from foveate.core.memory import Slot
from foveate.runtime.arena import ALIGNMENT, Arena, ArenaView, aligned

CAPACITY = 16 * mmap.PAGESIZE


@pytest.fixture
def arena():
    arena = Arena(CAPACITY)
    yield arena
    arena.close()


class ArenaMachine(RuleBasedStateMachine):
    """Any order of allocate, shrink and release keeps slots apart and the byte count exact, and coalesces fully."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(CAPACITY)
        self.live: dict[int, Slot] = {}

    def teardown(self) -> None:
        for slot in self.live.values():
            self.arena.release(slot)
        assert self.arena.used_bytes == 0
        whole = self.arena.allocate(CAPACITY)
        assert whole == Slot(0, CAPACITY)
        self.arena.close()

    @rule(target=slots, size=st.one_of(st.integers(1, 300), st.integers(1, CAPACITY)))
    def allocate(self, size: int) -> Slot | None:
        try:
            slot = self.arena.allocate(size)
        except ArenaFull:
            assert max(self.gaps(), default=0) < aligned(size)
            return None
        self.arena.view(slot)[:] = self.fill(slot)
        self.live[slot.offset] = slot
        return slot

    @rule(target=slots, slot=consumes(slots), part=st.floats(0.01, 1.0))
    def shrink(self, slot: Slot | None, part: float) -> Slot | None:
        if slot is None:
            return None
        smaller = self.arena.shrink(slot, max(1, int(slot.size * part)))
        self.arena.view(smaller)[:] = self.fill(smaller)
        self.live[smaller.offset] = smaller
        return smaller

    @rule(slot=consumes(slots))
    def release(self, slot: Slot | None) -> None:
        if slot is not None:
            self.arena.release(slot)
            del self.live[slot.offset]
            with pytest.raises(ValueError, match="not allocated"):
                self.arena.release(slot)

    @invariant()
    def bytes_are_counted_exactly(self) -> None:
        assert self.arena.used_bytes == sum(aligned(slot.size) for slot in self.live.values())
        assert self.arena.slots == len(self.live)

    @invariant()
    def nobody_writes_to_anothers_bytes(self) -> None:
        for slot in self.live.values():
            assert slot.offset % ALIGNMENT == 0
            assert slot.offset + slot.size <= CAPACITY
            assert bytes(self.arena.view(slot)) == self.fill(slot)

    def gaps(self) -> list[int]:
        """The true free ranges, from the live slots alone: what full coalescing must leave."""
        found, at = [], 0
        for offset in sorted(self.live):
            found.append(offset - at)
            at = offset + aligned(self.live[offset].size)
        return [*found, CAPACITY - at]

    @staticmethod
    def fill(slot: Slot) -> bytes:
        return bytes([(slot.offset // ALIGNMENT + slot.size) % 251]) * slot.size


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)


def test_takes_the_smallest_range_that_fits(arena: Arena) -> None:
    small, wall, large, _ = arena.allocate(256), arena.allocate(64), arena.allocate(512), arena.allocate(64)
    arena.release(small)
    arena.release(large)
    assert arena.allocate(200).offset == small.offset
    assert arena.allocate(300).offset == large.offset
    assert wall.offset == 256


def test_full_arena_says_so_and_recovers(arena: Arena) -> None:
    whole = arena.allocate(CAPACITY)
    with pytest.raises(ArenaFull) as caught:
        arena.allocate(1)
    assert caught.value.retryable
    assert (caught.value.kind, caught.value.limit_name) == (Kind.RATE, "limits.arena_bytes_max")
    assert (caught.value.limit, caught.value.actual) == (CAPACITY, CAPACITY + 1)
    assert caught.value.retry_after_seconds
    arena.release(whole)
    assert arena.allocate(1) == Slot(0, 1)


def test_released_or_outgrown_slots_are_not_accepted(arena: Arena) -> None:
    slot = arena.allocate(1000)
    smaller = arena.shrink(slot, 100)
    for stale in (slot, Slot(64, 36), Slot(0, 99)):
        with pytest.raises(ValueError, match="not allocated"):
            arena.release(stale)
    with pytest.raises(ValueError, match="cannot shrink"):
        arena.shrink(smaller, 101)
    with pytest.raises(ValueError, match="cannot shrink"):
        arena.shrink(smaller, 0)
    with pytest.raises(ValueError, match="cannot allocate"):
        arena.allocate(0)
    assert arena.used_bytes == 128


def test_workers_see_what_the_gateway_wrote_and_nothing_outside(arena: Arena) -> None:
    worker = ArenaView(arena.fd, arena.capacity_bytes)
    slot = arena.allocate(10)
    arena.view(slot)[:] = b"0123456789"
    assert bytes(worker.view(slot)) == b"0123456789"
    worker.view(Slot(slot.offset + 2, 3))[:] = b"xyz"
    assert bytes(arena.view(slot)) == b"01xyz56789"
    for outside in (Slot(CAPACITY - 4, 5), Slot(-1, 1), Slot(0, CAPACITY + 1), Slot(8, -1)):
        with pytest.raises(ValueError, match="outside"):
            worker.view(outside)


def test_file_has_no_name_and_keeps_its_size(arena: Arena) -> None:
    assert os.readlink(f"/proc/self/fd/{arena.fd}").startswith("/memfd:")
    for size in (0, CAPACITY // 2, CAPACITY * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)
    assert fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL


def test_capacity_is_whole_pages() -> None:
    arena = Arena(mmap.PAGESIZE + 1)
    assert arena.capacity_bytes == 2 * mmap.PAGESIZE
    arena.close()
    with pytest.raises(ValueError, match="positive"):
        Arena(0)


def test_close_leaves_open_views_alone() -> None:
    arena = Arena(CAPACITY)
    view = arena.view(arena.allocate(4))
    arena.close()
    arena.close()
    view[:] = b"safe"
    with pytest.raises(ValueError, match="closed"):
        arena.view(Slot(0, 4))


def test_what_lies_apart_is_nobody_elses() -> None:
    arena = Arena(CAPACITY, apart_bytes=100)
    whole = arena.allocate(CAPACITY)
    with pytest.raises(ArenaFull):
        arena.allocate(1)
    assert (arena.capacity_bytes, arena.used_bytes) == (CAPACITY, CAPACITY)
    assert arena.apart == Slot(whole.offset + whole.size, 100)
    arena.view(arena.apart)[:] = b"x" * 100
    assert arena.size_bytes == CAPACITY + mmap.PAGESIZE == os.fstat(arena.fd).st_size
    with pytest.raises(ValueError, match="not allocated"):
        arena.release(arena.apart)
    arena.close()
