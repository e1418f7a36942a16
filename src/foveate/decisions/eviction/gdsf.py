"""GreedyDual-Size-Frequency: what saves least per byte goes first, and what is not used ages.

After Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy", HP Laboratories HPL-98-69R1,
1998: a key's priority is ``clock + frequency * cost / size``, set at each use; the lowest is given up, and the clock moves to its
priority, so that what is used later outranks what was used often long ago. Cost is the milliseconds a hit saves, size is bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_STALE_SLACK: Final = 64
"""Stale places that a heap may hold beside as many as it has live ones, before it is rebuilt."""


class _Worth:
    """What is known of a key that is held."""

    __slots__ = ("hits", "parked", "rank", "serial", "used", "value")

    def __init__(self, value: float, rank: float, serial: int) -> None:
        self.value = value
        self.rank = rank
        self.serial = serial
        self.hits = 1
        self.used = True
        self.parked = False


class SavedPerByte(Generic[K]):
    """GDSF. :meth:`touch` and :meth:`admit` are O(1) (O(log n) when the key was met in use), the others O(log n), amortised.

    A priority only rises, so a key keeps its place in the heap until that place comes up, and is only then moved to where it
    belongs.
    """

    def __init__(self) -> None:
        self._clock = 0.0
        self._serial = 0
        self._worth: dict[K, _Worth] = {}
        self._heap: list[tuple[float, int, K]] = []

    def add(self, key: K, size: int, cost_ms: float) -> None:
        value = cost_ms / max(size, 1)
        self._serial += 1
        self._worth[key] = worth = _Worth(value, self._clock + value, self._serial)
        heapq.heappush(self._heap, (worth.rank, worth.serial, key))

    def touch(self, key: K) -> None:
        worth = self._worth[key]
        worth.used = True
        worth.hits += 1
        worth.rank = self._clock + worth.hits * worth.value

    def admit(self, key: K) -> None:
        worth = self._worth[key]
        worth.used = False
        if worth.parked:
            worth.parked = False
            heapq.heappush(self._heap, (worth.rank, worth.serial, key))

    def remove(self, key: K) -> None:
        del self._worth[key]
        if len(self._heap) > 2 * len(self._worth) + _STALE_SLACK:
            self._heap = [(it.rank, it.serial, key) for key, it in self._worth.items() if not it.parked]
            heapq.heapify(self._heap)

    def evict(self) -> K | None:
        heap = self._heap
        while heap:
            rank, serial, key = heap[0]
            worth = self._worth.get(key)
            if worth is None or worth.serial != serial:
                heapq.heappop(heap)
            elif worth.used:
                heapq.heappop(heap)
                worth.parked = True
            elif worth.rank > rank:
                heapq.heapreplace(heap, (worth.rank, serial, key))
            else:
                heapq.heappop(heap)
                # One that was in use while others went may rank below them; the clock never goes back.
                self._clock = max(self._clock, rank)
                del self._worth[key]
                return key
        return None
