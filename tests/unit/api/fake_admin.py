"""What an administrator sees as the server's inside, played: caches with one entry, the topology, a model on trial."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from foveate.core.errors import AliasNotFound, CacheKeyNotFound, FoveateError
from foveate.core.media import ImageOptions
from foveate.decisions.cache_sizing import advise
from foveate.decisions.miss_ratio import MissRatioCurve
from foveate.encoders.seat import EncoderReport
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
from foveate.journey.canary_port import CanaryReport, VersionReport
from foveate.journey.topology_port import TopologyReport
from foveate.observe.labels import CacheName
from foveate.observe.observer import KvPrefix
from foveate.observe.records import Topology

HOT = CachedKey("1" * 64, "d" * 64, "p" * 64, "e" * 64, ImageOptions(), "", 4096, 3, False, 12.5, 1.0)
IDLE = CacheReport(
    entries=1, bytes=4096, capacity_bytes=8192, pinned=0, hits=3, misses=1, shared=0, oversize=0, crowded=0, evictions={"capacity": 2},
    saved_ms={"vision_encode": 9.0}, policy="lru", hit_ratio=0.75,
)  # fmt: skip

MEDIUM = CachedMedium("2" * 64, "img.example", "/a.png", "d" * 64, "", 4096, 3, False, 12.5, 40.0, True, 1.0)
FETCHED = MediaCacheReport(
    **{**msgspec.structs.asdict(IDLE), "saved_ms": {"media_fetch": 7.0}}, unchanged=1, changed=0, not_kept={"no_store": 2},
)  # fmt: skip


@dataclass
class FakeCaches:
    """One cache with one entry, twice; notes what was asked of it."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def report(self) -> CachesReport:
        return CachesReport(IDLE, IDLE, FETCHED, KvPrefix(4, 1, 100, 25), BadMediaReport(2, 7), "p" * 64, "e" * 64)

    def curve(self, cache: CacheName) -> Curve:
        return Curve(cache, advise(MissRatioCurve(8192)))

    async def hottest(self, cache: CacheName, limit: int) -> CachedKeys:
        self.asked.append((cache, limit))
        return CachedKeys(cache, 1, (HOT,))

    async def drop(self, cache: CacheName, name: str) -> Dropped:
        self.asked.append((cache, name))
        if name != HOT.name:
            raise CacheKeyNotFound
        return Dropped(1, HOT.bytes)

    async def drop_version(self, cache: CacheName, version: str) -> Dropped:
        self.asked.append((cache, version))
        return Dropped(0, 0)

    async def hottest_media(self, limit: int) -> CachedMedia:
        self.asked.append(("media", limit))
        return CachedMedia(1, (MEDIUM,))

    async def drop_medium(self, name: str) -> Dropped:
        self.asked.append(("media", name))
        if name != MEDIUM.name:
            raise CacheKeyNotFound
        return Dropped(1, MEDIUM.bytes)

    async def drop_host(self, host: str) -> Dropped:
        self.asked.append(("media", host))
        return Dropped(2, 8192)

    def aliases(self, tenant: str, limit: int) -> Aliases:
        self.asked.append((tenant, limit))
        return Aliases(tenant, 1, (Alias("mine/1", "d" * 64, "png", 30, 20),))

    def forget(self, tenant: str, uuid: str) -> Forgotten:
        self.asked.append((tenant, uuid))
        if uuid != "mine/1":
            raise AliasNotFound
        return Forgotten(tenant, uuid)


@dataclass
class FakeTopology:
    """Notes what it is asked, and refuses with ``refusal`` where there is one."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)
    refusal: FoveateError | None = None

    def report(self) -> TopologyReport:
        worker = EncoderReport(0, "up", waiting=1, held=2, batches=3, pictures=4, busy_seconds=0.5, restarts=0)
        return TopologyReport("e-pd", 1, waiting=1, local=True, local_pictures=0, workers=(worker,))

    async def set(
        self, kind: Topology, encoders: int | None = None, *, prefill: int | None = None, decode: int | None = None
    ) -> TopologyReport:
        self.asked.append((kind, encoders, prefill, decode))
        if self.refusal is not None:
            raise self.refusal
        return self.report()


@dataclass
class FakeCanary:
    """Notes what it is asked, and refuses with ``refusal`` where there is one."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)
    refusal: FoveateError | None = None

    def report(self) -> CanaryReport:
        return CanaryReport("none", VersionReport("m", "p", "e"))

    async def start(self, model: str, *, share: float, warm: int, encoder: str | None = None) -> CanaryReport:
        return self._note("start", model, share, warm, *([] if encoder is None else [encoder]))

    def set_share(self, share: float) -> CanaryReport:
        return self._note("share", share)

    def promote(self) -> CanaryReport:
        return self._note("promote")

    async def rollback(self) -> CanaryReport:
        return self._note("rollback")

    def _note(self, *asked: Any) -> CanaryReport:
        self.asked.append(asked)
        if self.refusal is not None:
            raise self.refusal
        return self.report()
