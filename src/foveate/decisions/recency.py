"""How many bytes were used since a key was last used: the reuse distance that least-recently-used eviction turns on.

A cache of ``c`` bytes that evicts what was used longest ago still holds a key if and only if the sizes of all keys used since, and its
own, sum to at most ``c`` (the stack property: Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM
Systems Journal 9(2), 1970; it holds for bytes because what lies above a key in the stack only grows until the key is used again).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FAN_BITS: Final = 5
"""A level sums 32 places of the one below. Adding up to 32 integers in one call is about as fast in CPython as two or three steps of a
Fenwick tree's loop, and three levels do for 32,768 places, where a Fenwick tree takes fifteen steps."""

_PLACES_MIN: Final = 1 << (2 * _FAN_BITS)


class RecencyStack(Generic[K]):
    """Keys in the order of their last use, with their sizes in bytes. :meth:`use` is O(log n), amortised; memory is O(keys)."""

    def __init__(self) -> None:
        self.bytes = 0
        self._places: OrderedDict[K, tuple[int, int]] = OrderedDict()
        self._next = 0
        self._levels: list[list[int]] = _levels(_PLACES_MIN)

    def __len__(self) -> int:
        return len(self._places)

    def use(self, key: K, size: int) -> int | None:
        """Move ``key`` to the top; return the bytes of the keys that were above it, or ``None`` when it is new.

        ``size`` is its size from now on.
        """
        place = self._places.pop(key, None)
        above = None
        if place is not None:
            above = self._above(place[0])
            self._add(*place, sign=-1)
        if self._next == len(self._levels[0]):
            self._renumber()
        self._places[key] = (self._next, size)
        self._add(self._next, size)
        self._next += 1
        return above

    def remove(self, key: K) -> None:
        """Forget ``key``. Raises KeyError when it is not there."""
        self._add(*self._places.pop(key), sign=-1)

    def oldest(self) -> K:
        """Return the key at the bottom. Raises StopIteration when there is none."""
        return next(iter(self._places))

    def _add(self, place: int, size: int, sign: int = 1) -> None:
        size *= sign
        self.bytes += size
        for level in self._levels:
            level[place] += size
            place >>= _FAN_BITS

    def _above(self, place: int) -> int:
        """Sum all places after ``place``: on each level those that follow it within its group."""
        total = 0
        for level in self._levels:
            total += sum(level[place + 1 : (place | (1 << _FAN_BITS) - 1) + 1])
            place >>= _FAN_BITS
        return total

    def _renumber(self) -> None:
        """Close the gaps that uses left, with room for three times as many uses as there are keys before the next time."""
        places = self._places
        self._levels = _levels(max(_PLACES_MIN, 4 * len(places)))
        self.bytes = 0
        for number, (key, (_, size)) in enumerate(places.items()):
            places[key] = (number, size)
            self._add(number, size)
        self._next = len(places)


def _levels(places: int) -> list[list[int]]:
    """Return zeroed sums for ``places``, each level a group's size shorter, up to one that is a single group."""
    levels = [[0] * places]
    while len(levels[-1]) > 1 << _FAN_BITS:
        levels.append([0] * (-(-len(levels[-1]) >> _FAN_BITS)))
    return levels
