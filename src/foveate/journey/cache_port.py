"""What an operator may ask of the caches: the part of the service behind ``/admin/caches``.

Each cache answers for itself; no figure joins them. The media cache has questions of its own: its keys are URLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from foveate.core.media import ImageOptions
from foveate.decisions.cache_sizing import Advice
from foveate.decisions.eviction import CacheStats, PolicyName
from foveate.decisions.freshness import NotKept
from foveate.observe.labels import CacheName
from foveate.observe.observer import KvPrefix


class CacheReport(CacheStats, frozen=True, kw_only=True):
    """One cache: its policy, its state and its totals since the start. ``hit_ratio`` is null before the first look-up.

    ``bytes`` is what its entries occupy in the arena. ``hits``, ``misses`` and ``shared`` are of its own look-ups; the processor cache is
    only asked for what the encoder cache does not have.
    """

    policy: PolicyName
    hit_ratio: float | None


class MediaCacheReport(CacheReport, frozen=True, kw_only=True):
    """The media cache. A look-up that asked its origin is a miss where the body came, and neither where it had not changed (``unchanged``);
    ``hit_ratio`` counts those with the look-ups. ``changed`` are the misses that had asked. ``not_kept`` counts bodies by what forbade it.
    """

    unchanged: int
    changed: int
    not_kept: Mapping[NotKept, int]


class BadMediaReport(msgspec.Struct, frozen=True):
    """Media that could not be decoded: how many are remembered for some seconds, and how often one was refused at once since the start."""

    contents: int
    refusals: int


class CachesReport(msgspec.Struct, frozen=True):
    """The caches of the server and, apart from them, what the engine said of its own. Versions are those that serve now."""

    processor: CacheReport
    encoder: CacheReport
    media: MediaCacheReport
    kv_prefix: KvPrefix
    bad_media: BadMediaReport
    processor_version: str
    encoder_version: str


class CachedKey(msgspec.Struct, frozen=True):
    """One entry. ``name`` is what it is dropped by, ``digest`` the BLAKE3 of the content; ``bytes`` is what it occupies.

    ``encoder_version`` is null in the processor cache; ``scope`` is empty for entries that every tenant may meet.
    ``saves_ms`` is what each hit saves. ``last_used_at`` is in Unix seconds.
    """

    name: str
    digest: str
    processor_version: str
    encoder_version: str | None
    options: ImageOptions
    scope: str
    bytes: int
    hits: int
    in_use: bool
    saves_ms: float
    last_used_at: float


class CachedKeys(msgspec.Struct, frozen=True):
    """The hottest entries of a cache, most hits first. ``entries`` is how many there are in all."""

    cache: CacheName
    entries: int
    keys: tuple[CachedKey, ...]


class CachedMedium(msgspec.Struct, frozen=True):
    """One entry of the media cache. ``host`` and the beginning of ``path`` say what it is; a query is never told. ``digest`` is the BLAKE3
    of the content.

    ``fresh_seconds`` is how long it may still be used unasked, 0 if its time is up; ``revalidates``: its origin can then be asked whether
    it has changed. The others as in :class:`CachedKey`.
    """

    name: str
    host: str
    path: str
    digest: str
    scope: str
    bytes: int
    hits: int
    in_use: bool
    saves_ms: float
    fresh_seconds: float
    revalidates: bool
    last_used_at: float


class CachedMedia(msgspec.Struct, frozen=True):
    """The hottest entries of the media cache, most hits first. ``entries`` is how many there are in all."""

    entries: int
    media: tuple[CachedMedium, ...]


class Dropped(msgspec.Struct, frozen=True):
    """What was dropped. The bytes of entries in use are free when their requests have ended."""

    entries: int
    bytes: int


class Curve(msgspec.Struct, frozen=True):
    """What other capacities would do for a cache. ``advice`` is null where ``cache.curve_sample_rate`` is 0."""

    cache: CacheName
    advice: Advice | None


class Alias(msgspec.Struct, frozen=True):
    """A client's name for media. ``digest`` is the BLAKE3 of the content; the others are null for a video."""

    uuid: str
    digest: str
    format: str | None
    width: int | None
    height: int | None


class Aliases(msgspec.Struct, frozen=True):
    """A tenant's names, those used last first. ``bound`` is how many there are in all."""

    tenant: str
    bound: int
    aliases: tuple[Alias, ...]


class Forgotten(msgspec.Struct, frozen=True):
    """A name that is free again."""

    tenant: str
    uuid: str


class CacheOperator(Protocol):
    """What an operator may do. One implementation (:class:`foveate.journey.operate_caches.CacheOperations`)."""

    def report(self) -> CachesReport:
        """Return the state of all caches, and what the engine says of its own."""
        ...

    def curve(self, cache: CacheName) -> Curve:
        """Return what other capacities would do."""
        ...

    async def hottest(self, cache: CacheName, limit: int) -> CachedKeys:
        """Return the entries hit most often, at most ``limit``."""
        ...

    async def drop(self, cache: CacheName, name: str) -> Dropped:
        """Forget one entry. Raises CacheKeyNotFound."""
        ...

    async def drop_version(self, cache: CacheName, version: str) -> Dropped:
        """Forget every entry that a version had a part in."""
        ...

    async def hottest_media(self, limit: int) -> CachedMedia:
        """Return the media used most often, at most ``limit``."""
        ...

    async def drop_medium(self, name: str) -> Dropped:
        """Forget what one URL answered. Raises CacheKeyNotFound."""
        ...

    async def drop_host(self, host: str) -> Dropped:
        """Forget everything that came from a host."""
        ...

    def aliases(self, tenant: str, limit: int) -> Aliases:
        """Return a tenant's names for media, at most ``limit``."""
        ...

    def forget(self, tenant: str, uuid: str) -> Forgotten:
        """Free a name. Raises AliasNotFound."""
        ...
