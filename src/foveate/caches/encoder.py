"""The encoder cache: a picture's embeddings by content, versions and options.

A hit saves media decode, processor and vision encode.

Bookkeeping only: the bytes lie in arena slots that the gateway allocated, and are handed back through ``release``.
Knows nothing of the processor cache. Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from foveate.caches.keys import EncoderKey
from foveate.caches.lease import Lease
from foveate.core.memory import Slot, TensorBundle
from foveate.core.stages import Stage
from foveate.decisions.eviction import CacheStats, EvictionReason, Held, Holdings, LeastRecentlyUsed


class EncoderEntry(msgspec.Struct, frozen=True):
    """A picture's embeddings and all that prompt and prefill need beside them, so that a hit needs nothing else.

    ``replacement``, ``rows`` and ``meta`` are those of :class:`foveate.core.media.PreparedImage`, ``embeddings`` those
    of
    :class:`foveate.core.media.EncodedImage`; ``cost_ms`` is what making them cost, by stage, in milliseconds.
    """

    replacement: str
    rows: int
    meta: dict[str, list[int]]
    embeddings: TensorBundle
    cost_ms: Mapping[Stage, float]


class EncoderCache:
    """Embeddings within ``capacity_bytes``.

    ``release`` is called exactly once with the slot of every entry given up.
    """

    def __init__(self, capacity_bytes: int, release: Callable[[Slot], None]) -> None:
        self._holdings: Holdings[EncoderKey, EncoderEntry] = Holdings(capacity_bytes, LeastRecentlyUsed())
        self._release = release
        self._hits = self._misses = self._shared = 0
        self._saved_ms: dict[Stage, float] = {}

    def get(self, key: EncoderKey) -> Lease[EncoderEntry] | None:
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

    def put(self, key: EncoderKey, entry: EncoderEntry, size: int) -> Lease[EncoderEntry] | None:
        """Keep an entry of ``size`` bytes (what its slot really occupies) and lease it.

        The slot then belongs to the cache. ``None``: it does not fit, and the slot stays the caller's. When the key is
        already there, the older entry stays, the new slot is released and the lease is on the older entry: use
        ``lease.entry``.
        """
        older = self._holdings.pin(key)
        if older is not None:
            self._free([entry])
            return Lease(older, self._unpin, self._holdings.repin)
        held, freed = self._holdings.add(key, entry, size)
        self._free(freed)
        return None if held is None else Lease(held, self._unpin, self._holdings.repin)

    def __contains__(self, key: EncoderKey) -> bool:
        """Whether :meth:`get` would hit; counts nothing."""
        return key in self._holdings

    def keys(self) -> list[EncoderKey]:
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

    def drop(self, key: EncoderKey) -> None:
        """Forget one entry. If leased, its slot is released with the last lease."""
        self._free(self._holdings.drop(key, "dropped"))

    def drop_version(self, version: str) -> None:
        """Forget every entry of an encoder version, or made of a processor version."""
        self._drop_where(lambda key: version in (key.encoder_version, key.processor_version), "version")

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

    def _drop_where(self, doomed: Callable[[EncoderKey], bool], reason: EvictionReason) -> None:
        self._free(self._holdings.drop_where(doomed, reason))

    def _unpin(self, held: Held[EncoderKey, EncoderEntry]) -> None:
        self._free(self._holdings.unpin(held))

    def _free(self, entries: Iterable[EncoderEntry]) -> None:
        for entry in entries:
            self._release(entry.embeddings.slot)
