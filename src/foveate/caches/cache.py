"""What the two caches have in common: look-ups, leases, bytes within a capacity, and what is told of them.

Bookkeeping only: the bytes lie in arena slots that the gateway allocated, and are handed back through ``release``. Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from foveate.caches.lease import Lease
from foveate.core.clock import now
from foveate.core.memory import Slot
from foveate.core.stages import Stage
from foveate.decisions.cache_sizing import Advice, advise
from foveate.decisions.eviction import CacheStats, EvictionReason, Held, Holdings, PolicyName, make_policy
from foveate.decisions.miss_ratio import MissRatioCurve


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


def heat(held: Held[K, E]) -> tuple[int, float]:
    """How hot an entry is, to be compared: by its hits, and of equals by its last use."""
    return held.hits, held.used_at


class Cache(Generic[K, E]):
    """Entries within ``capacity_bytes``, given up in the order of ``policy``.

    ``release`` is called exactly once with the slot of every entry given up. ``curve_rate`` is the share (0..1) of contents whose look-ups
    are followed to tell what other capacities would do (:meth:`advice`); 0: none.
    """

    def __init__(
        self,
        capacity_bytes: int,
        release: Callable[[Slot], None],
        *,
        policy: PolicyName = "lru",
        curve_rate: float = 0.0,
    ) -> None:
        self._holdings: Holdings[K, E] = Holdings(capacity_bytes, make_policy(policy, capacity_bytes))
        self.policy: PolicyName = policy
        self._release = release
        self._curve: MissRatioCurve[K] | None = (
            MissRatioCurve(capacity_bytes, rate_max=curve_rate) if curve_rate else None
        )
        self._hits = self._misses = self._shared = 0
        self._saved_ms: dict[Stage, float] = {}

    def get(self, key: K) -> Lease[E] | None:
        """Look a key up; count a hit or a miss."""
        held = self._holdings.pin(key)
        if held is None:
            self._misses += 1
            return None
        self._hits += 1
        held.hits += 1
        held.used_at = now()
        saved = self._saved_ms
        for stage, ms in held.value.cost_ms.items():
            saved[stage] = saved.get(stage, 0.0) + ms
        if self._curve is not None:
            self._curve.lookup(key, held.size, held.cost_ms, True)
        return Lease(held, self._unpin, self._holdings.repin)

    def peek(self, key: K) -> Lease[E] | None:
        """Lease an entry without counting a look-up: for whoever only looks."""
        held = self._holdings.pin(key)
        return None if held is None else Lease(held, self._unpin, self._holdings.repin)

    def put(self, key: K, entry: E, size: int) -> Lease[E] | None:
        """Keep an entry of ``size`` bytes (what its slot really occupies) and lease it.

        The slot then belongs to the cache. ``None``: it does not fit, and the slot stays the caller's. When the key is
        already there, the older entry stays, the new slot is released and the lease is on the older entry: use
        ``lease.entry``. Where a curve is kept, the look-up that this entry was made for counts there as a miss.
        """
        cost_ms = sum(entry.cost_ms.values())
        if self._curve is not None:
            self._curve.lookup(key, size, cost_ms, False)
        older = self._holdings.pin(key)
        if older is not None:
            self._free([entry])
            return Lease(older, self._unpin, self._holdings.repin)
        held, freed = self._holdings.add(key, entry, size, cost_ms)
        self._free(freed)
        if held is not None:
            held.used_at = now()
        return None if held is None else Lease(held, self._unpin, self._holdings.repin)

    def restore(self, key: K, entry: E, size: int) -> bool:
        """Keep an entry that was made before this process began; return whether it is kept, and its slot the cache's. Counts no look-up."""
        if key in self._holdings:
            return False
        held, freed = self._holdings.add(key, entry, size, sum(entry.cost_ms.values()))
        self._free(freed)
        if held is None:
            return False
        held.used_at = now()
        self._unpin(held)
        return True

    def __contains__(self, key: K) -> bool:
        """Whether :meth:`get` would hit; counts nothing."""
        return key in self._holdings

    def keys(self) -> list[K]:
        """Return the keys that would hit."""
        return self._holdings.keys()

    def shared(self) -> None:
        """Count work in flight that was joined."""
        self._shared += 1

    def joined(self, key: K, entry: E) -> None:
        """Count a look-up that missed, joined work in flight and got this entry: to the curve, one that was spared the work."""
        self._shared += 1
        if self._curve is not None:
            self._curve.lookup(key, entry.slot.size, sum(entry.cost_ms.values()), True)

    def shrink(self, wanted: int) -> int:
        """Evict until ``wanted`` bytes are free that were not, as far as leases allow; return how many were freed."""
        before = self._holdings.bytes
        self._free(self._holdings.shrink(wanted, "memory"))
        return before - self._holdings.bytes

    def drop(self, key: K, reason: EvictionReason = "dropped") -> int:
        """Forget one entry; return the bytes it occupied, 0 when it was not there. If leased, its slot is released with the last lease."""
        held = self._holdings.find(key)
        self._free(self._holdings.drop(key, reason))
        return 0 if held is None else held.size

    def drop_version(self, version: str) -> None:
        """Forget every entry that this version had a part in."""
        self._drop_where(lambda key: version in key.versions, "version")

    def clear(self) -> None:
        """Forget every entry."""
        self._drop_where(lambda key: True, "cleared")

    def entries(self) -> list[Held[K, E]]:
        """Return what :meth:`get` would find, to be looked at only."""
        return self._holdings.entries()

    def advice(self) -> Advice | None:
        """Return what other capacities would do, as far as is known by now; ``None`` where no curve is kept."""
        return None if self._curve is None else advise(self._curve)

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
