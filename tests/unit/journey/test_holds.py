"""A slot goes back exactly once, with its last holder."""

import pytest

from foveate.journey.holds import LooseLease, SlotHold
from foveate.runtime.arena import Arena


@pytest.fixture
def arena() -> Arena:
    return Arena(2**20)


def test_the_last_holder_gives_it_back(arena: Arena) -> None:
    hold = SlotHold(arena, arena.allocate(100))
    hold.retain().release()
    assert arena.slots == 1
    hold.release()
    assert arena.slots == 0
    with pytest.raises(AssertionError):
        hold.release()
    with pytest.raises(AssertionError):
        hold.retain()


def test_only_a_slot_nobody_else_holds_may_be_given_away(arena: Arena) -> None:
    hold = SlotHold(arena, arena.allocate(100))
    hold.retain()
    with pytest.raises(AssertionError):
        hold.give_away()
    hold.release()
    hold.give_away()
    assert arena.slots == 1
    arena.release(hold.slot)


def test_a_loose_lease_lives_as_long_as_its_users(arena: Arena) -> None:
    lease = LooseLease("entry", SlotHold(arena, arena.allocate(100)))
    again = lease.again()
    lease.release()
    assert (again.entry, arena.slots) == ("entry", 1)
    again.release()
    assert arena.slots == 0


def test_shrinking_gives_the_tail_back(arena: Arena) -> None:
    hold = SlotHold(arena, arena.allocate(1000))
    hold.shrink(100)
    assert (hold.slot.size, arena.used_bytes) == (100, 128)
    hold.release()
    assert arena.used_bytes == 0
