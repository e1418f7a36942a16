"""Free and taken ranges of a span of bytes: best fit, coalescing, O(log n). Knows no memory, only numbers."""

from __future__ import annotations

from sortedcontainers import SortedList

ALIGNMENT = 64
"""Every range starts at a multiple of this and occupies a multiple of it: a cache line, and what tensors need."""


def aligned(size: int) -> int:
    """Return ``size`` rounded up to a multiple of :data:`ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Ranges:
    """The ranges of 0..``capacity``, which is a multiple of :data:`ALIGNMENT`. Who takes which is not kept: give back what was taken."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.used = 0
        """Bytes that are taken, alignment included."""
        # Free ranges, three ways: by size for the best fit, by first and by last byte for coalescing.
        self._free: SortedList[tuple[int, int]] = SortedList()
        self._free_from: dict[int, int] = {}
        self._free_until: dict[int, int] = {}
        self._add_free(0, capacity)

    @property
    def fragments(self) -> int:
        """Number of free ranges."""
        return len(self._free)

    def take(self, size: int) -> int | None:
        """Return the offset of ``size`` bytes in the smallest free range that holds them; ``None`` when none does."""
        needed = aligned(size)
        at = self._free.bisect_left((needed, 0))
        if at == len(self._free):
            return None
        found, offset = self._free[at]
        self._remove_free(offset, found)
        if found > needed:
            self._add_free(offset + needed, found - needed)
        self.used += needed
        return int(offset)

    def give_back(self, offset: int, size: int) -> None:
        """Free a range that was taken, or the tail of one from a multiple of :data:`ALIGNMENT` on."""
        size = aligned(size)
        self.used -= size
        before = self._free_until.get(offset)
        if before is not None:
            self._remove_free(before, offset - before)
            offset, size = before, size + offset - before
        after = self._free_from.get(offset + size)
        if after is not None:
            self._remove_free(offset + size, after)
            size += after
        self._add_free(offset, size)

    def _add_free(self, offset: int, size: int) -> None:
        self._free.add((size, offset))
        self._free_from[offset] = size
        self._free_until[offset + size] = offset

    def _remove_free(self, offset: int, size: int) -> None:
        self._free.remove((size, offset))
        del self._free_from[offset]
        del self._free_until[offset + size]
