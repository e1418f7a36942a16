"""Leases over what lies in the arena: who still needs which bytes. All of this runs on the event loop; nothing here waits."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from foveate.runtime.slot_hold import SlotHold

__all__ = ["EarlyHold", "Lease", "LooseLease", "SlotHold"]

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
