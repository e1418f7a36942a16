"""The node's shared-memory arena: one anonymous memory file, and the only allocator of it.

The file has no name, so nothing outlives its processes, and it is sealed: its size cannot change under a mapping.
The gateway allocates; workers see bytes of slots they were given (:class:`ArenaView`). Freed pages stay resident: the
capacity bounds them, and punching them out makes the next writer pay the page faults again (measured on 64 MiB:
8 ms to write resident pages, 44 ms after punching).

Does not cover: who may use a slot and for how long. A slot that a worker may still write to must not be released.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from foveate.core.errors import ArenaFull
from foveate.core.limits import ARENA_LIMIT
from foveate.core.memory import Slot
from foveate.runtime.ranges import ALIGNMENT, Ranges, aligned

__all__ = ["ALIGNMENT", "Arena", "ArenaView", "aligned"]

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaView:
    """The arena as a worker maps it. Implements :class:`foveate.runtime.port.ArenaAccess`."""

    def __init__(self, fd: int, size: int) -> None:
        self._size = size
        self._bytes = memoryview(mmap.mmap(fd, size))

    def view(self, slot: Slot) -> memoryview:
        """Return the slot's bytes, writable, without a copy. Raises ValueError for a range outside the arena."""
        end = slot.offset + slot.size
        if slot.offset < 0 or slot.size < 0 or end > self._size:
            raise ValueError(f"slot {slot.offset}+{slot.size} is outside an arena of {self._size} bytes")
        return self._bytes[slot.offset : end]


class Arena:
    """Allocates slots, best fit, in O(log n). Not thread-safe: the gateway's event loop owns it."""

    def __init__(self, capacity_bytes: int, *, apart_bytes: int = 0) -> None:
        """Create an arena of ``capacity_bytes``, rounded up to whole pages. Nothing is resident until it is written.

        ``apart_bytes`` more lie behind it as the slot ``apart``, which :meth:`allocate` does not know: they are its owner's to deal out.
        """
        if capacity_bytes <= 0:
            raise ValueError("an arena needs a positive capacity")
        self.capacity_bytes = _in_pages(capacity_bytes)
        self.apart = Slot(self.capacity_bytes, apart_bytes)
        self.size_bytes = self.capacity_bytes + _in_pages(apart_bytes)
        """Of the whole file."""
        self.fd = os.memfd_create("foveate-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size_bytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self._view: ArenaView | None = ArenaView(self.fd, self.size_bytes)
        self._allocated: dict[int, Slot] = {}
        self._ranges = Ranges(self.capacity_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes that allocated slots occupy, alignment included."""
        return self._ranges.used

    @property
    def slots(self) -> int:
        """Number of allocated slots."""
        return len(self._allocated)

    def allocate(self, size: int) -> Slot:
        """Return a new slot of ``size`` bytes from the smallest free range that holds it. Its bytes are not cleared.

        Raises ArenaFull when no free range is large enough, ValueError when ``size`` is not positive.
        """
        if size <= 0:
            raise ValueError(f"cannot allocate {size} bytes")
        offset = self._ranges.take(size)
        if offset is None:
            free = self.capacity_bytes - self.used_bytes
            raise ArenaFull(
                detail=f"{size} bytes asked for, {free} of {self.capacity_bytes} free in {self._ranges.fragments} ranges",
                limit_name=ARENA_LIMIT,
                limit=self.capacity_bytes,
                actual=self.used_bytes + size,
                retry_after_seconds=1.0,
            )
        slot = Slot(offset, size)
        self._allocated[offset] = slot
        return slot

    def shrink(self, slot: Slot, size: int) -> Slot:
        """Give the slot's tail back and return the slot of ``size`` bytes that replaces it at the same offset.

        Raises ValueError when ``slot`` is not allocated or ``size`` is not within 1..``slot.size``.
        """
        self._check(slot)
        if not 0 < size <= slot.size:
            raise ValueError(f"cannot shrink {slot.size} bytes to {size}")
        kept, had = aligned(size), aligned(slot.size)
        replacement = Slot(slot.offset, size)
        self._allocated[slot.offset] = replacement
        if kept < had:
            self._ranges.give_back(slot.offset + kept, had - kept)
        return replacement

    def release(self, slot: Slot) -> None:
        """Give the slot back. Raises ValueError when it is not allocated: a second release would free another's."""
        self._check(slot)
        del self._allocated[slot.offset]
        self._ranges.give_back(slot.offset, slot.size)

    def view(self, slot: Slot) -> memoryview:
        """Return the bytes of a slot, or of a part of one, writable, without a copy."""
        if self._view is None:
            raise ValueError("the arena is closed")
        return self._view.view(slot)

    def close(self) -> None:
        """Give the memory back; it goes when the last view of it goes. Closing twice is allowed."""
        if self._view is not None:
            self._view = None
            os.close(self.fd)

    def _check(self, slot: Slot) -> None:
        if self._allocated.get(slot.offset) != slot:
            raise ValueError(f"slot {slot.offset}+{slot.size} is not allocated")


def _in_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
