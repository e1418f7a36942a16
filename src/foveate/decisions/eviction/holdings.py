"""What a cache keeps: byte-accounted entries with pins. Pure.

:class:`Holdings` is the bookkeeping that both caches use and that the simulator runs too. It frees nothing itself:
every method that gives an entry up returns it, exactly once over the entry's life, and the caller frees what it stood
for.

Invariants: ``bytes`` is the sum of the sizes of all entries not yet returned, pinned and dropped ones included; it
never exceeds ``bytes_max``; an entry with a pin is never returned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Generic, Literal, TypeVar, get_args

import msgspec

from foveate.core.stages import Stage
from foveate.decisions.eviction.policy import Policy

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

EvictionReason = Literal["capacity", "memory", "dropped", "version", "replaced", "cleared"]
EVICTION_REASONS: Final[tuple[EvictionReason, ...]] = get_args(EvictionReason)
"""``capacity``: to fit another entry. ``memory``: the arena was needed for a request. ``replaced``: a newer one came, or it no
longer holds. The others: on demand.
"""


class CacheStats(msgspec.Struct, frozen=True):
    """One cache's state and its totals since the start.

    ``bytes`` counts dropped entries that are still leased. ``shared`` counts misses that joined work in flight.
    ``oversize`` counts entries larger than the whole cache, ``crowded`` those for which pinned entries left no room.
    ``saved_ms`` is what hits saved, by stage.
    """

    entries: int
    bytes: int
    capacity_bytes: int
    pinned: int
    hits: int
    misses: int
    shared: int
    oversize: int
    crowded: int
    evictions: Mapping[EvictionReason, int]
    saved_ms: Mapping[Stage, float]


class Held(Generic[K, V]):
    """One entry. ``pins`` counts its users; ``listed`` tells whether the key still finds it; a hit saves ``cost_ms`` milliseconds.

    ``hits`` and ``used_at`` (monotonic seconds) are its owner's to keep: nothing here knows the time, or which pin is a hit.
    """

    __slots__ = ("cost_ms", "hits", "key", "listed", "pins", "size", "used_at", "value")

    def __init__(self, key: K, value: V, size: int, cost_ms: float) -> None:
        self.key = key
        self.value = value
        self.size = size
        self.cost_ms = cost_ms
        self.pins = 1
        self.listed = True
        self.hits = 0
        self.used_at = 0.0


class Holdings(Generic[K, V]):
    """Entries by key, their bytes and their pins, within ``bytes_max``."""

    def __init__(self, bytes_max: int, policy: Policy[K]) -> None:
        if bytes_max < 0:
            raise ValueError("a capacity is not negative")
        self.bytes_max = bytes_max
        self.bytes = 0
        self.oversize = 0
        self.crowded = 0
        self.evictions: dict[EvictionReason, int] = dict.fromkeys(EVICTION_REASONS, 0)
        self._policy = policy
        self._demoted: OrderedDict[K, None] = OrderedDict()
        self._listed: dict[K, Held[K, V]] = {}
        self._pinned_bytes = 0
        self._pinned = 0

    def __len__(self) -> int:
        return len(self._listed)

    def __contains__(self, key: K) -> bool:
        return key in self._listed

    @property
    def pinned(self) -> int:
        """Entries in use, dropped ones included."""
        return self._pinned

    def keys(self) -> list[K]:
        """Return the keys that :meth:`pin` would find."""
        return list(self._listed)

    def entries(self) -> list[Held[K, V]]:
        """Return the entries that :meth:`pin` would find."""
        return list(self._listed.values())

    def find(self, key: K) -> Held[K, V] | None:
        """Find an entry without using it."""
        return self._listed.get(key)

    def pin(self, key: K) -> Held[K, V] | None:
        """Find an entry and add a pin to it."""
        held = self._listed.get(key)
        if held is None:
            return None
        self._policy.touch(key)
        if not held.pins:
            self._demoted.pop(key, None)
            self._pinned_bytes += held.size
            self._pinned += 1
        held.pins += 1
        return held

    def repin(self, held: Held[K, V]) -> None:
        """Add a pin to an entry that has one."""
        if not held.pins:
            raise RuntimeError("only an entry in use can be pinned again")
        held.pins += 1

    def unpin(self, held: Held[K, V]) -> list[V]:
        """Take one pin away. Returns the value when that gives the entry up: it was dropped while in use."""
        if not held.pins:
            raise RuntimeError("an entry was unpinned more often than it was pinned")
        held.pins -= 1
        if held.pins:
            return []
        self._pinned_bytes -= held.size
        self._pinned -= 1
        if held.listed:
            self._policy.admit(held.key)
            return []
        self.bytes -= held.size
        return [held.value]

    def add(self, key: K, value: V, size: int, cost_ms: float = 1.0) -> tuple[Held[K, V] | None, list[V]]:
        """Add an entry with one pin; return it and the values given up for it.

        ``cost_ms`` is what a hit on it saves, in milliseconds; the default makes every hit count alike. Returns
        ``(None, [])`` and gives up nothing when ``size`` cannot fit, however much is given up. Raises KeyError when the
        key is there.
        """
        if size < 0:
            raise ValueError("a size is not negative")
        if key in self._listed:
            raise KeyError(key)
        if size > self.bytes_max:
            self.oversize += 1
            return None, []
        if size > self.bytes_max - self._pinned_bytes:
            self.crowded += 1
            return None, []
        freed = self.shrink(self.bytes + size - self.bytes_max, "capacity")
        held = Held(key, value, size, cost_ms)
        self._listed[key] = held
        self._policy.add(key, size, cost_ms)
        self.bytes += size
        self._pinned_bytes += size
        self._pinned += 1
        return held, freed

    def shrink(self, wanted: int, reason: EvictionReason) -> list[V]:
        """Give up unused entries until ``wanted`` more bytes are free, or none is left; return their values."""
        freed: list[V] = []
        while wanted > 0:
            key = self._first()
            if key is None:
                break
            held = self._listed.pop(key)
            wanted -= held.size
            freed += self._gone(held, reason)
        return freed

    def drop(self, key: K, reason: EvictionReason) -> list[V]:
        """Forget a key at once; return its value unless it is in use (then :meth:`unpin` returns it)."""
        held = self._listed.get(key)
        return [] if held is None else self._unlist(held, reason)

    def drop_where(self, doomed: Callable[[K], bool], reason: EvictionReason) -> list[V]:
        """Forget every key that ``doomed`` says; return the values not in use. O(entries)."""
        chosen = [held for key, held in self._listed.items() if doomed(key)]
        return [value for held in chosen for value in self._unlist(held, reason)]

    def demote(self, key: K) -> None:
        """Give this entry up before all that are not demoted, if it is here and not in use. Its next use takes this back."""
        held = self._listed.get(key)
        if held is not None and not held.pins:
            self._demoted[key] = None

    def _first(self) -> K | None:
        """Take the key to be given up next out of the order."""
        if not self._demoted:
            return self._policy.evict()
        key = self._demoted.popitem(last=False)[0]
        self._policy.remove(key)
        return key

    def _unlist(self, held: Held[K, V], reason: EvictionReason) -> list[V]:
        del self._listed[held.key]
        self._demoted.pop(held.key, None)
        self._policy.remove(held.key)
        return self._gone(held, reason)

    def _gone(self, held: Held[K, V], reason: EvictionReason) -> list[V]:
        held.listed = False
        self.evictions[reason] += 1
        if held.pins:
            return []
        self.bytes -= held.size
        return [held.value]
