"""Leases over arena slots: who still needs which bytes, and when a slot may go back.

A slot is given back exactly once, when the last of those who hold it lets go. All of this runs on the event loop; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from foveate.core.memory import Slot
from foveate.runtime.arena import Arena

T = TypeVar("T", covariant=True)


class Lease(Protocol[T]):
    """The right to use an entry until :meth:`release`."""

    @property
    def entry(self) -> T:
        """What is leased."""
        ...

    def again(self) -> Lease[T]:
        """Return a further lease on the same entry."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


class SlotHold:
    """A slot with a count of holders. Made with one holder; the slot returns to the arena when the count reaches zero.

    ``give_back``, where it is given, is called instead: the slot is a cache's, and held by a lease.
    """

    def __init__(self, arena: Arena, slot: Slot, give_back: Callable[[], None] | None = None) -> None:
        self._arena = arena
        self._holders = 1
        self._give_back = give_back
        self.slot = slot

    def retain(self) -> SlotHold:
        """Add a holder."""
        assert self._holders > 0, "a slot that was given back cannot be held again"
        self._holders += 1
        return self

    def release(self) -> None:
        """Drop a holder."""
        assert self._holders > 0, "a slot was released more often than held"
        self._holders -= 1
        if self._holders == 0:
            if self._give_back is None:
                self._arena.release(self.slot)
            else:
                self._give_back()

    def give_away(self) -> None:
        """Leave the slot to a cache, which will give it back itself. Only the last holder may."""
        assert self._holders == 1, "a slot that others hold cannot be given away"
        assert self._give_back is None, "a slot that a cache has cannot be given to another"
        self._holders = 0

    def shrink(self, size: int) -> None:
        """Give the tail beyond ``size`` bytes back."""
        self.slot = self._arena.shrink(self.slot, size)


class EarlyHold:
    """One holder's share of a slot that may be let go before the block that took it ends: what streams for minutes needs no picture."""

    def __init__(self, hold: SlotHold) -> None:
        self._hold: SlotHold | None = hold

    def retain(self) -> SlotHold:
        """Add a holder of the slot."""
        assert self._hold is not None, "what was let go cannot be held again"
        return self._hold.retain()

    def release(self) -> None:
        """Let go. Again is harmless."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()


class LooseLease(Generic[T]):
    """A lease on an entry that no cache would keep (too large, or the cache is off): it lives as long as its users."""

    def __init__(self, entry: T, hold: SlotHold) -> None:
        self.entry = entry
        self._hold = hold

    def again(self) -> LooseLease[T]:
        """Return a further lease on the same entry."""
        return LooseLease(self.entry, self._hold.retain())

    def release(self) -> None:
        """Give this lease back."""
        self._hold.release()
