"""What the two caches have in common: look-ups, leases, bytes within a capacity, and what became of each entry.

Bookkeeping only: the bytes lie in arena slots that the gateway allocated, and are handed back through ``release``. Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from foveate.caches.lease import Lease
from foveate.core.memory import Slot
from foveate.core.stages import Stage
from foveate.decisions.eviction import CacheStats, EvictionReason, Held, Holdings, PolicyName, make_policy


class CacheKey(Hashable, Protocol):
    """A typed key (:mod:`foveate.caches.keys`)."""

    @property
    def digest(self) -> str: ...

    @property
    def versions(self) -> tuple[str, ...]: ...

    def name(self) -> str: ...


class CacheEntry(Protocol):
    """What is kept: the slot that it occupies, and what making it cost, by stage, in milliseconds."""

    @property
    def slot(self) -> Slot: ...

    @property
    def cost_ms(self) -> Mapping[Stage, float]: ...


K = TypeVar("K", bound=CacheKey)
E = TypeVar("E", bound=CacheEntry)


class Cache(Generic[K, E]):
    """Entries within ``capacity_bytes``, given up in the order of ``policy``.

    ``release`` is called exactly once with the slot of every entry given up.
    """

    def __init__(self, capacity_bytes: int, release: Callable[[Slot], None], *, policy: PolicyName = "lru") -> None:
        self._holdings: Holdings[K, E] = Holdings(capacity_bytes, make_policy(policy, capacity_bytes))
        self._release = release
        self._hits = self._misses = self._shared = 0
        self._saved_ms: dict[Stage, float] = {}

    def get(self, key: K) -> Lease[E] | None:
        """Look a key up; count a hit or a miss."""
        held = self._holdings.pin(key)
        if held is None:
            self._misses += 1
            return None
        self._hits += 1
        saved = self._saved_ms
        for stage, ms in held.value.cost_ms.items():
            saved[stage] = saved.get(stage, 0.0) + ms
        return Lease(held, self._unpin, self._holdings.repin)

    def put(self, key: K, entry: E, size: int) -> Lease[E] | None:
        """Keep an entry of ``size`` bytes (what its slot really occupies) and lease it.

        The slot then belongs to the cache. ``None``: it does not fit, and the slot stays the caller's. When the key is
        already there, the older entry stays, the new slot is released and the lease is on the older entry: use
        ``lease.entry``.
        """
        older = self._holdings.pin(key)
        if older is not None:
            self._free([entry])
            return Lease(older, self._unpin, self._holdings.repin)
        held, freed = self._holdings.add(key, entry, size, sum(entry.cost_ms.values()))
        self._free(freed)
        return None if held is None else Lease(held, self._unpin, self._holdings.repin)

    def __contains__(self, key: K) -> bool:
        """Whether :meth:`get` would hit; counts nothing."""
        return key in self._holdings

    def keys(self) -> list[K]:
        """Return the keys that would hit."""
        return self._holdings.keys()

    def shared(self) -> None:
        """Count a miss that joined work already in flight."""
        self._shared += 1

    def shrink(self, wanted: int) -> int:
        """Evict until ``wanted`` bytes are free that were not, as far as leases allow; return how many were freed."""
        before = self._holdings.bytes
        self._free(self._holdings.shrink(wanted, "memory"))
        return before - self._holdings.bytes

    def drop(self, key: K) -> None:
        """Forget one entry. If leased, its slot is released with the last lease."""
        self._free(self._holdings.drop(key, "dropped"))

    def drop_version(self, version: str) -> None:
        """Forget every entry that this version had a part in."""
        self._drop_where(lambda key: version in key.versions, "version")

    def clear(self) -> None:
        """Forget every entry."""
        self._drop_where(lambda key: True, "cleared")

    def stats(self) -> CacheStats:
        """Return counts and totals. Safe to call from a scrape thread: it copies under the interpreter lock."""
        holdings = self._holdings
        return CacheStats(
            entries=len(holdings),
            bytes=holdings.bytes,
            capacity_bytes=holdings.bytes_max,
            pinned=holdings.pinned,
            hits=self._hits,
            misses=self._misses,
            shared=self._shared,
            oversize=holdings.oversize,
            crowded=holdings.crowded,
            evictions=holdings.evictions.copy(),
            saved_ms=self._saved_ms.copy(),
        )

    def _drop_where(self, doomed: Callable[[K], bool], reason: EvictionReason) -> None:
        self._free(self._holdings.drop_where(doomed, reason))

    def _unpin(self, held: Held[K, E]) -> None:
        self._free(self._holdings.unpin(held))

    def _free(self, entries: Iterable[E]) -> None:
        for entry in entries:
            self._release(entry.slot)
