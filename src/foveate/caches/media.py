"""The media cache: what origins answered, by URL, for as long as they declared it fresh.

A hit saves media_fetch. Off unless it has a capacity. It is the one cache whose key is a URL, so it is the one whose entries may become
untrue: every use is on the terms of :mod:`foveate.decisions.freshness`. What the bytes are is no concern of it, and everything made of them
is kept elsewhere, by content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Literal

import msgspec

from foveate.caches.cache import Cache
from foveate.caches.keys import MediaKey
from foveate.caches.lease import Lease
from foveate.core.clock import now
from foveate.core.memory import Slot
from foveate.core.stages import Stage
from foveate.decisions.eviction import PolicyName
from foveate.decisions.freshness import NOT_KEPT, NotKept, Terms

ENTRIES_MAX: Final = 32_768
"""An entry costs about 2 KB beside its bytes; tiny files must not make that the larger part."""

Source = Literal["origin", "cache", "revalidated"]
"""Where the bytes of a medium came from. ``revalidated``: from the cache, after the origin said that they have not changed."""


@dataclass(slots=True)
class MediaEntry:
    """One origin's answer: its bytes, whose BLAKE3 is ``digest``, and the ``terms`` on which they may be used, which a revalidation renews.

    ``addresses`` are those that the host resolved to, as far as they were tried: the policy of every later use judges them again.
    ``host`` and ``path`` are for operators; there is no query. ``asked_at`` (monotonic seconds) tells which of two answers is newer.
    """

    slot: Slot
    digest: str
    terms: Terms
    addresses: tuple[IPv4Address | IPv6Address, ...]
    host: str
    path: str
    asked_at: float
    cost_ms: Mapping[Stage, float]


class MediaCounts(msgspec.Struct, frozen=True):
    """Totals beside those that every cache has: ``unchanged`` and ``changed`` are what revalidations found, ``not_kept`` is by reason."""

    unchanged: int
    changed: int
    not_kept: Mapping[NotKept, int]


class MediaCache(Cache[MediaKey, MediaEntry]):
    """Answers by URL. A look-up is counted when it is known what became of it, not when it is made."""

    def __init__(
        self,
        capacity_bytes: int,
        release: Callable[[Slot], None],
        *,
        policy: PolicyName = "lru",
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        # No curve: how often an origin wants to be asked again does not depend on the capacity.
        super().__init__(capacity_bytes, release, policy=policy)
        self._entries_max = entries_max
        self._unchanged = self._changed = 0
        self._not_kept: dict[NotKept, int] = dict.fromkeys(NOT_KEPT, 0)

    @property
    def on(self) -> bool:
        """Whether anything can be kept."""
        return self._holdings.bytes_max > 0

    def find(self, key: MediaKey) -> Lease[MediaEntry] | None:
        """Lease an entry, fresh or not, and count nothing."""
        held = self._holdings.pin(key)
        return None if held is None else Lease(held, self._unpin, self._holdings.repin)

    def used(self, key: MediaKey, entry: MediaEntry) -> None:
        """Count a hit: the entry was used without asking anybody."""
        self._hits += 1
        self._saved(key, entry, 0.0)

    def renewed(self, key: MediaKey, entry: MediaEntry, terms: Terms, spent_ms: float) -> None:
        """The origin says that the entry has not changed, which took ``spent_ms``: it goes on on new terms."""
        self._unchanged += 1
        entry.terms = terms
        self._saved(key, entry, spent_ms)

    def fetched(self, *, changed: bool) -> None:
        """Count a miss: the origin sent the whole body; ``changed`` when it was asked whether it has."""
        self._misses += 1
        self._changed += changed

    def followed(self, source: Source) -> None:
        """Count a look-up that joined another's, by what became of that one."""
        if source == "origin":
            self._misses += 1
            self.shared()
        elif source == "cache":
            self._hits += 1
        else:
            self._unchanged += 1

    def refused(self, reason: NotKept) -> None:
        """Count an answer that is not kept."""
        self._not_kept[reason] += 1

    def keep(self, key: MediaKey, entry: MediaEntry, size: int) -> Lease[MediaEntry] | None:
        """Keep an entry of ``size`` bytes in the place of an older one, and lease it.

        The slot then belongs to the cache. ``None``: it does not fit, or a newer one is there; the slot stays the caller's.
        """
        older = self._holdings.find(key)
        if older is not None:
            if older.value.asked_at > entry.asked_at:
                return None
            self.drop(key, "replaced")
        lease = self.put(key, entry, size)
        if len(self._holdings) > self._entries_max:
            self._free(self._holdings.shrink(1, "capacity"))
        return lease

    def counts(self) -> MediaCounts:
        """Return the totals that only this cache has. As safe as :meth:`stats`."""
        return MediaCounts(self._unchanged, self._changed, self._not_kept.copy())

    def _saved(self, key: MediaKey, entry: MediaEntry, spent_ms: float) -> None:
        held = self._holdings.find(key)
        if held is not None and held.value is entry:
            held.hits += 1
            held.used_at = now()
        for stage, ms in entry.cost_ms.items():
            self._saved_ms[stage] = self._saved_ms.get(stage, 0.0) + max(ms - spent_ms, 0.0)
