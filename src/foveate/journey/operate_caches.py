"""What an operator may do with the caches (:class:`foveate.journey.cache_port.CacheOperator`).

A cache may hold very many entries. What goes through all of them does so in a thread, on a list taken on the event loop, and dropping many
takes turns with everything else on the loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from foveate.caches.aliases import Content
from foveate.caches.cache import Cache, heat
from foveate.caches.keys import EncoderKey, MediaKey, ProcessorKey
from foveate.caches.media import MediaCache, MediaEntry
from foveate.core.clock import now, wall
from foveate.core.errors import AliasNotFound, CacheKeyNotFound
from foveate.decisions.eviction import EvictionReason, Held
from foveate.journey.cache_port import (
    Alias,
    Aliases,
    BadMediaReport,
    CachedKey,
    CachedKeys,
    CachedMedia,
    CachedMedium,
    CacheReport,
    CachesReport,
    Curve,
    Dropped,
    Forgotten,
    MediaCacheReport,
)
from foveate.journey.keep import forget_kept
from foveate.journey.tools import Tools
from foveate.observe.labels import CacheGroup, CacheName
from foveate.observe.logging import get_logger

DROPPED_AT_ONCE: Final = 256
"""Some two milliseconds of the event loop."""

Key = ProcessorKey | EncoderKey
log = get_logger(__name__)


class CacheOperations:
    """See the port."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def report(self) -> CachesReport:
        """Return the state of all caches, and what the engine says of its own."""
        tools = self._tools
        return CachesReport(
            processor=_report(tools.processor_cache),
            encoder=_report(tools.encoder_cache),
            media=_media_report(tools.media_cache),
            kv_prefix=tools.observer.kv_prefix,
            bad_media=BadMediaReport(len(tools.bad_media), tools.bad_media.refusals),
            processor_version=tools.roll_out.stable.processor_version,
            encoder_version=tools.roll_out.stable.encoder_version,
        )

    def curve(self, cache: CacheName) -> Curve:
        """Return what other capacities would do."""
        return Curve(cache, self._cache(cache).advice())

    async def hottest(self, cache: CacheName, limit: int) -> CachedKeys:
        """Return the entries hit most often, at most ``limit``; of equals, those used last."""
        entries = self._cache(cache).entries()
        hottest = await asyncio.to_thread(heapq.nlargest, limit, entries, heat)
        since = wall() - now()
        return CachedKeys(cache, len(entries), tuple(_cached(held, since) for held in hottest))

    async def drop(self, cache: CacheName, name: str) -> Dropped:
        """Forget one entry. Raises CacheKeyNotFound."""
        dropped = await _drop_named(cache, self._cache(cache), name)
        return await self._forgotten(cache, dropped)

    async def drop_version(self, cache: CacheName, version: str) -> Dropped:
        """Forget every entry that a version had a part in. What is in flight now is kept when it is done."""
        keys = self._cache(cache).keys()
        found = await asyncio.to_thread(lambda: [key for key in keys if version in key.versions])
        dropped = await _drop(cache, self._cache(cache), found, "version")
        return await self._forgotten(cache, dropped)

    async def hottest_media(self, limit: int) -> CachedMedia:
        """Return the media used most often, at most ``limit``; of equals, those used last."""
        entries = self._tools.media_cache.entries()
        hottest = await asyncio.to_thread(heapq.nlargest, limit, entries, heat)
        return CachedMedia(len(entries), tuple(_medium(held, now(), wall()) for held in hottest))

    async def drop_medium(self, name: str) -> Dropped:
        """Forget what one URL answered. Raises CacheKeyNotFound."""
        return await _drop_named("media", self._tools.media_cache, name)

    async def drop_host(self, host: str) -> Dropped:
        """Forget everything that came from a host, spelled as in the list."""
        entries = self._tools.media_cache.entries()
        found = await asyncio.to_thread(lambda: [held.key for held in entries if held.value.host == host])
        return await _drop("media", self._tools.media_cache, found, "dropped")

    def aliases(self, tenant: str, limit: int) -> Aliases:
        """Return a tenant's names for media, those used last first, at most ``limit``."""
        bound, names = self._tools.aliases.listed(tenant, limit)
        return Aliases(tenant, bound, tuple(_alias(name, content) for name, content in names))

    def forget(self, tenant: str, uuid: str) -> Forgotten:
        """Free a name. Raises AliasNotFound."""
        if not self._tools.aliases.forget(tenant, uuid):
            raise AliasNotFound(param="uuid")
        log.info("an operator freed a uuid of the tenant %s", tenant)
        return Forgotten(tenant, uuid)

    async def _forgotten(self, cache: CacheName, dropped: Dropped) -> Dropped:
        """Have what was dropped stay forgotten over a restart, too."""
        if cache == "encoder":
            await forget_kept(self._tools)
        return dropped

    def _cache(self, name: CacheName) -> Cache[Any, Any]:
        return self._tools.processor_cache if name == "processor" else self._tools.encoder_cache


async def _drop_named(told: CacheGroup, cache: Cache[Any, Any], name: str) -> Dropped:
    keys = cache.keys()
    found = await asyncio.to_thread(lambda: [key for key in keys if key.name() == name])
    if not found:
        raise CacheKeyNotFound(f"The {told} cache has no entry of this name.", param="name")
    return await _drop(told, cache, found, "dropped")


async def _drop(told: CacheGroup, cache: Cache[Any, Any], keys: Sequence[Any], reason: EvictionReason) -> Dropped:
    sizes: list[int] = []
    for start in range(0, len(keys), DROPPED_AT_ONCE):
        sizes += [cache.drop(key, reason) for key in keys[start : start + DROPPED_AT_ONCE]]
        await asyncio.sleep(0)
    dropped = Dropped(sum(size > 0 for size in sizes), sum(sizes))
    log.info("%s cache: an operator dropped %d entries of %d bytes", told, dropped.entries, dropped.bytes)
    return dropped


def _report(cache: Cache[Any, Any]) -> CacheReport:
    stats = cache.stats()
    return CacheReport(
        **msgspec.structs.asdict(stats), policy=cache.policy, hit_ratio=_ratio(stats.hits, stats.hits + stats.misses)
    )


def _media_report(cache: MediaCache) -> MediaCacheReport:
    stats, counts = cache.stats(), cache.counts()
    return MediaCacheReport(
        **msgspec.structs.asdict(stats),
        **msgspec.structs.asdict(counts),
        policy=cache.policy,
        hit_ratio=_ratio(stats.hits, stats.hits + stats.misses + counts.unchanged),
    )


def _ratio(hits: int, asked: int) -> float | None:
    return hits / asked if asked else None


def _medium(held: Held[MediaKey, MediaEntry], at: float, at_wall: float) -> CachedMedium:
    entry = held.value
    return CachedMedium(
        name=held.key.name(),
        host=entry.host,
        path=entry.path,
        digest=entry.digest,
        scope=held.key.scope,
        bytes=held.size,
        hits=held.hits,
        in_use=held.pins > 0,
        saves_ms=sum(entry.cost_ms.values()),
        fresh_seconds=max(entry.terms.fresh_until - at, 0.0),
        revalidates=entry.terms.validator is not None,
        last_used_at=at_wall - at + held.used_at,
    )


def _alias(name: str, content: Content) -> Alias:
    header = content.header
    if header is None:
        return Alias(name, content.digest, None, None, None)
    return Alias(name, content.digest, header.format, header.width, header.height)


def _cached(held: Held[Key, Any], since: float) -> CachedKey:
    key = held.key
    return CachedKey(
        name=key.name(),
        digest=key.digest,
        processor_version=key.processor_version,
        encoder_version=key.encoder_version if isinstance(key, EncoderKey) else None,
        options=key.options,
        scope=key.scope,
        bytes=held.size,
        hits=held.hits,
        in_use=held.pins > 0,
        saves_ms=sum(held.value.cost_ms.values()),
        last_used_at=since + held.used_at,
    )
