"""S3-FIFO: three first-in-first-out queues, of which a small one filters what is used only once.

After Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023, algorithm 1: new keys enter a
small queue (a tenth of the bytes); those used again while they pass it move to the main queue, the others are given up and
remembered in a ghost queue, from which they would come back straight into the main queue. The main queue is a clock: a key that was
used goes round again.

Different from the paper: sizes are bytes, not counts, and an entry in use cannot be given up. Its key keeps its place, so that being
used does not by itself make it young; only a key that is met in use at a queue's old end is taken out and enters at the young end
when its use is over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SMALL_SHARE: Final = 0.1
"""The small queue's share of the bytes (the paper's choice)."""

HITS_COUNTED_MAX: Final = 3
"""Two bits of counter for each key (the paper's)."""

HITS_TO_MAIN: Final = 2
"""Hits on a key while in the small queue that move it to the main queue (the paper, algorithm 1: more than one)."""

GHOSTS_MAX: Final = 65_536
"""Fingerprints of given-up keys that are remembered at most, whatever the sizes: about 8 MB in CPython. At 100 kB an entry they
cover a main queue of 6.5 GB."""


class _Seen:
    """What is known of a key that is held."""

    __slots__ = ("hits", "main", "parked", "size", "used")

    def __init__(self, size: int, main: bool) -> None:
        self.size = size
        self.main = main
        self.hits = 0
        self.used = True
        self.parked = False


class SmallMainGhost(Generic[K]):
    """S3-FIFO over a cache of ``bytes_max``. Every method is O(1), :meth:`evict` amortised over hits and uses."""

    def __init__(self, bytes_max: int) -> None:
        self._small_max = int(bytes_max * SMALL_SHARE)
        self._ghost_max = bytes_max - self._small_max
        self._seen: dict[K, _Seen] = {}
        self._small: OrderedDict[K, _Seen] = OrderedDict()
        self._main: OrderedDict[K, _Seen] = OrderedDict()
        self._small_bytes = 0
        self._ghosts: OrderedDict[int, int] = OrderedDict()
        self._ghost_bytes = 0

    def add(self, key: K, size: int, cost_ms: float) -> None:
        ghost = self._ghosts.pop(hash(key), None)
        seen = self._seen[key] = _Seen(size, ghost is not None)
        if ghost is not None:
            self._ghost_bytes -= ghost
            self._main[key] = seen
        else:
            self._small_bytes += size
            self._small[key] = seen

    def touch(self, key: K) -> None:
        seen = self._seen[key]
        seen.used = True
        if seen.hits < HITS_COUNTED_MAX:
            seen.hits += 1

    def admit(self, key: K) -> None:
        seen = self._seen[key]
        seen.used = False
        if seen.parked:
            seen.parked = False
            (self._main if seen.main else self._small)[key] = seen

    def remove(self, key: K) -> None:
        seen = self._seen.pop(key)
        if seen.main:
            self._main.pop(key, None)
        else:
            self._small.pop(key, None)
            self._small_bytes -= seen.size

    def evict(self) -> K | None:
        while self._small or self._main:
            if self._small and (self._small_bytes >= self._small_max or not self._main):
                key = self._leave_small()
            else:
                key = self._leave_main()
            if key is not None:
                return key
        return None

    def _leave_small(self) -> K | None:
        """Take the oldest key out of the small queue; return it if it is given up."""
        key, seen = self._small.popitem(last=False)
        if seen.used:
            seen.parked = True
            return None
        if seen.hits >= HITS_TO_MAIN:
            seen.hits = 0
            seen.main = True
            self._small_bytes -= seen.size
            self._main[key] = seen
            return None
        del self._seen[key]
        self._small_bytes -= seen.size
        self._remember(hash(key), seen.size)
        return key

    def _leave_main(self) -> K | None:
        """Take the oldest key out of the main queue; return it if it is given up."""
        key, seen = self._main.popitem(last=False)
        if seen.used:
            seen.parked = True
            return None
        if seen.hits:
            seen.hits -= 1
            self._main[key] = seen
            return None
        del self._seen[key]
        return key

    def _remember(self, fingerprint: int, size: int) -> None:
        """Keep a ghost, and as many others as the main queue's bytes and the bound on their number allow."""
        self._ghost_bytes += size - self._ghosts.pop(fingerprint, 0)
        self._ghosts[fingerprint] = size
        while self._ghost_bytes > self._ghost_max or len(self._ghosts) > GHOSTS_MAX:
            self._ghost_bytes -= self._ghosts.popitem(last=False)[1]
