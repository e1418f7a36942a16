"""How many bytes were used since something was last used: the reuse distance that least-recently-used eviction turns on.

A cache of ``c`` bytes that evicts what was used longest ago still holds a key if and only if the sizes of all keys used since, and its
own, sum to at most ``c`` (the stack property: Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM
Systems Journal 9(2), 1970; it holds for bytes because what lies above a key in the stack only grows until the key is used again).

Uses are taken many at a time, by arrays: in CPython a tree's loop for each use costs several times as much.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class RecencyStack:
    """Members ``0`` .. ``members_max - 1``, as far as they were used, in the order of their last use, with their sizes in bytes.

    Memory is O(members_max + uses_max), whatever was used.
    """

    def __init__(self, members_max: int, uses_max: int) -> None:
        self._places: Integers = np.full(members_max, -1, np.int64)
        """Where each member was last used; -1: it is not here."""
        # Uses leave gaps, which are closed when there are as many as members, or no room is left. The last place stays empty.
        self._sizes: Integers = np.zeros(2 * members_max + uses_max + 1, np.int64)
        self._next = 0
        self._earlier: Flags = np.tri(uses_max, k=-1, dtype=bool)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._places >= 0))

    @property
    def bytes(self) -> int:
        """Sizes of all members that are here."""
        return int(self._sizes[: self._next].sum())

    def use(self, members: Integers, sizes: Integers) -> Integers:
        """Move members to the top one after the other; return for each use the bytes that were above it then, or -1 when it was new.

        ``sizes`` are their sizes from now on. At most ``uses_max`` uses at once; O(members_max + uses²), in a few array operations.
        """
        if self._next + len(members) >= len(self._sizes) or self._next > 2 * len(self) + 4 * len(self._earlier):
            self._close_gaps()
        first, count = self._next, len(members)
        places = np.arange(first, first + count)
        before, last = self._before(members, places)
        self._sizes[places] = sizes
        # What lies above a use's last place, and what was used in this batch until then...
        used = np.concatenate(([0], np.cumsum(self._sizes[: first + count])))
        above = used[places] - used[before + 1]
        # ... but where a member was used again, it lies no longer where it was. Exact in float64 up to 2^53 bytes. No matrix product:
        # that would wake BLAS's threads, for microseconds, on the event loop.
        narrow = before.astype(np.int32)  # twice as fast to compare
        moved: Flags = narrow[None, :] > narrow[:, None]
        moved &= self._earlier[:count, :count]
        above -= np.einsum("ij,j->i", moved.astype(np.float64), self._sizes[before].astype(np.float64)).astype(np.int64)
        self._sizes[before[before < first]] = 0  # of a new one that is the last place, always empty
        self._sizes[places[~last]] = 0
        self._places[members] = places
        self._next += len(members)
        return np.where(before < 0, -1, above)

    def remove(self, members: Integers) -> None:
        """Forget members that are here."""
        self._sizes[self._places[members]] = 0
        self._places[members] = -1

    def oldest_first(self) -> tuple[Integers, Integers]:
        """Return all members that are here, the one used longest ago first, and their sizes."""
        members = np.flatnonzero(self._places >= 0)
        members = members[np.argsort(self._places[members])]
        return members, self._sizes[self._places[members]]

    def _before(self, members: Integers, places: Integers) -> tuple[Integers, Flags]:
        """Return for each use the place of the use before of the same member (-1: none), and whether it is the member's last one."""
        order = np.argsort(members, kind="stable")
        again = np.flatnonzero(members[order][1:] == members[order][:-1])
        before = self._places[members]
        before[order[again + 1]] = places[order[again]]
        last = np.ones(len(members), bool)
        last[order[again]] = False
        return before, last

    def _close_gaps(self) -> None:
        members, sizes = self.oldest_first()
        self._sizes[:] = 0
        self._sizes[: len(members)] = sizes
        self._places[members] = np.arange(len(members))
        self._next = len(members)
