"""Who still needs a slot of the arena, and when it may go back: exactly once, when the last of those who hold it lets go.

Runs on the event loop that owns the arena; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable

from foveate.core.memory import Slot
from foveate.runtime.arena import Arena


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
