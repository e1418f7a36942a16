"""Receive bytes of unknown or announced length into the arena, chunk by chunk, up to a cap."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from foveate.core.errors import BodyTooLarge, FoveateError, MediaTooLarge, MediaUndecodable
from foveate.core.memory import Slot
from foveate.journey.holds import SlotHold
from foveate.runtime.arena import Arena

STEPS_BYTES = (256 * 1024, 2 * 1024 * 1024)
"""What is taken for a body, first and next; after that, room for all of it. So no more than the last of these is ever copied on the
event loop, and neither a small body nor one that was only announced takes much of the arena.
"""


class ArenaSink:
    """A growing slot. Leaving the context gives the slot back unless :meth:`take` took it."""

    def __init__(
        self,
        arena: Arena,
        bytes_max: int,
        *,
        take: Callable[[int], SlotHold],
        grow: Callable[[int], None] = lambda size: None,
        too_large: type[FoveateError] = MediaTooLarge,
        limit_name: str = "max_item_bytes",
    ) -> None:
        """``take`` gives a slot of a size (:func:`foveate.journey.room.take`), or raises ArenaFull. ``grow`` is told of bytes as they come
        (or go, when negative), and may refuse them. ``too_large`` and ``limit_name`` say what the cap refuses with.
        """
        self._arena = arena
        self._take = take
        self._grow = grow
        self._bytes_max = bytes_max
        self._too_large = too_large
        self._limit_name = limit_name
        self._hold: SlotHold | None = None
        self._written = 0
        self._announced = bytes_max
        self.taken = False
        """Whether the bytes were handed over."""

    def __enter__(self) -> ArenaSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def check(self, size: int) -> None:
        """Judge a body of ``size`` bytes. Raises the cap's error."""
        if size > self._bytes_max:
            raise self._refusal(size)

    def open(self, size_hint: int | None) -> None:
        """Begin a body; an announced length is checked against the cap, and believed as the bytes come. Raises the cap's error, ArenaFull.

        Room for all of it is taken only when the first steps are full: whoever announces much and sends nothing gets little.
        """
        self.check(size_hint or 0)
        self._announced = self._bytes_max if size_hint is None else size_hint
        self._reserve(self._step(1))

    def write(self, chunk: bytes | memoryview) -> None:
        """Append. Raises the cap's error, ArenaFull."""
        end = self._written + len(chunk)
        if end > self._bytes_max:
            raise self._refusal(end)
        self._grow(len(chunk))
        if self._hold is None or end > self._hold.slot.size:
            self._reserve(self._step(end))
        assert self._hold is not None
        self._arena.view(self._hold.slot)[self._written : end] = chunk
        self._written = end

    def reset(self) -> None:
        """Forget what was written, before a retry."""
        self._grow(-self._written)
        self._written = 0

    @property
    def slot(self) -> Slot:
        """The bytes written so far."""
        return Slot(self._hold.slot.offset, self._written) if self._hold is not None else Slot(0, 0)

    def take(self) -> SlotHold:
        """Hand the slot over, shrunk to what was written. Raises MediaUndecodable when that is nothing."""
        if self._hold is None or self._written == 0:
            raise MediaUndecodable("The media is empty.")
        hold, self._hold = self._hold, None
        self.taken = True
        hold.shrink(self._written)
        return hold

    def _step(self, size: int) -> int:
        """Return how much to take for ``size`` bytes: a small step first, then all that was announced, then all that may come."""
        if size > self._announced:
            return self._bytes_max
        return min(next((step for step in STEPS_BYTES if step >= size), self._announced), self._announced)

    def _reserve(self, size: int) -> None:
        old = self._hold
        if old is not None and old.slot.size >= size:
            return
        fresh = self._take(size)
        if old is not None:
            self._arena.view(fresh.slot)[: self._written] = self._arena.view(old.slot)[: self._written]
            old.release()
        self._hold = fresh

    def _refusal(self, size: int) -> FoveateError:
        what = "The request body" if self._too_large is BodyTooLarge else "The media"
        text = f"{what} has {size} bytes or more; at most {self._bytes_max} are allowed."
        return self._too_large(text, limit_name=self._limit_name, limit=self._bytes_max, actual=size)
