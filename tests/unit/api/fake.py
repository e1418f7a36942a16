"""A scripted service behind the API, and a real server in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from foveate.api.app import create_app
from foveate.api.protocol import ConnectionLimits
from foveate.api.server import HttpServer, bind
from foveate.core.budget import Adjustment, Budget, Caller
from foveate.core.errors import (
    AliasNotFound,
    CacheKeyNotFound,
    EngineUnknown,
    FoveateError,
    NotPermitted,
    Unauthenticated,
    UpstreamUnknown,
)
from foveate.core.media import Blob, ImageOptions
from foveate.core.memory import Slot
from foveate.core.request import Request
from foveate.decisions.cache_sizing import advise
from foveate.decisions.miss_ratio import MissRatioCurve
from foveate.encoders.seat import EncoderReport
from foveate.engines.port import EngineReport, FinishEvent, RelayReport, TokenEvent, TokenLogprob, TokenStep
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
from foveate.journey.port import (
    Answer,
    BodyBuffer,
    Estimate,
    Readiness,
    Reloaded,
    RulesInForce,
    Terms,
    Unpacked,
    UrlTerms,
    Usage,
)
from foveate.journey.topology_port import TopologyReport
from foveate.observe.labels import CacheName
from foveate.observe.metrics import Metrics
from foveate.observe.observer import KvPrefix, Observer
from foveate.observe.records import Topology

Step = TokenEvent | FinishEvent | Exception | asyncio.Event
"""An event to yield, an error to raise, or something to wait for."""

TIMING = "admission;dur=0.100, llm_prefill;dur=2.500, ttft;dur=2.700, unattributed;dur=0.100"


def token(text: str, choice: int = 0, steps: Sequence[TokenStep] = ()) -> TokenEvent:
    return TokenEvent("", choice, text, [1], list(steps))


def finish(choice: int = 0, *, last: bool = True, reason: Any = "stop") -> FinishEvent:
    return FinishEvent("", choice, reason, 2, last)


def logprob(text: str, value: float) -> TokenLogprob:
    return TokenLogprob(1, text, text.encode(), value)


class FakeBuffer:
    """Collects a large body."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.chunks: list[bytes] = []

    def write(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        assert sum(map(len, self.chunks)) <= self.bytes_max

    @property
    def slot(self) -> Slot:
        return Slot(0, sum(map(len, self.chunks)))


class FakeAnswer:
    """Plays the service's script."""

    def __init__(self, service: FakeService) -> None:
        self._service = service

    async def begin(self) -> None:
        for step in self._service.before:
            await _play(step)

    def server_timing(self) -> str:
        return TIMING

    async def events(self) -> AsyncIterator[TokenEvent | FinishEvent]:
        for step in self._service.script:
            await asyncio.sleep(0)
            await _play(step)
            if isinstance(step, TokenEvent | FinishEvent):
                yield step

    def adjustments(self) -> tuple[Adjustment, ...]:
        return self._service.adjusted

    def usage(self) -> Usage:
        return Usage(prompt_tokens=20, completion_tokens=2, visual_tokens=12, cached_tokens=4, images=1)


async def _play(step: Step) -> None:
    if isinstance(step, Exception):
        raise step
    if isinstance(step, asyncio.Event):
        await step.wait()


FREE = Estimate(
    admitted=True, complete=True, tier="default", bytes=0, pixels=0, frames=0, text_tokens=7, visual_tokens=0, processor_cache_hits=0,
    encoder_cache_hits=0, items=(), adjustments=(), refusals=(),
)  # fmt: skip
"""What a text costs."""


def _as_it_is(body: bytes) -> tuple[bytes, tuple[Blob, ...]]:
    return body, ()


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


ENGINE = EngineReport("0", True, 1, 2, 900.0)
UPSTREAM = RelayReport("gpu1:8000", ("m",), True, False, 1.0, 2, 900.0, {"answered": 5}, 0, "")


@dataclass
class FakeService:
    """What the API sees as the server's inside. ``ended`` gets how each answer's context was left."""

    models: tuple[str, ...] = ("m", "org/other")
    context_tokens_max: int = 4096
    body_bytes_max: int = 1 << 20
    relays: bool = False
    inline_bytes_min: int = 4096
    before: list[Step] = field(default_factory=list)
    script: list[Step] = field(default_factory=lambda: [token("Hel"), token("lo"), finish()])
    ready: Readiness = field(default_factory=lambda: Readiness(True))
    unpacking: Callable[[bytes], tuple[bytes, tuple[Blob, ...]]] = _as_it_is
    requests: list[Request] = field(default_factory=list)
    unpacked: list[Unpacked | None] = field(default_factory=list)
    buffers: list[FakeBuffer] = field(default_factory=list)
    open_buffers: int = 0
    open_blobs: int = 0
    open_answers: int = 0
    reload_refused: FoveateError | None = None
    callers: dict[str, Caller] = field(default_factory=dict)
    """By key; empty: anyone may ask."""
    adjusted: tuple[Adjustment, ...] = ()
    hosts: tuple[str, ...] | None = None
    estimated: Estimate = FREE
    cached: FakeCaches = field(default_factory=lambda: FakeCaches())
    observer: Observer = field(default_factory=lambda: Observer(Metrics(), None))
    tried: FakeCanary = field(default_factory=lambda: FakeCanary())
    placed: FakeTopology = field(default_factory=lambda: FakeTopology())
    ended: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    refused_tenants: list[str | None] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def caller(self, key: str | None, tier: str | None) -> Caller:
        if self.callers and key not in self.callers:
            raise Unauthenticated
        caller = self.callers.get(key or "", Caller())
        if tier is not None and not caller.admin:
            raise NotPermitted(param="X-Foveate-Tier")
        return caller if tier is None else Caller(caller.tenant, Budget(tier=tier), caller.admin)

    def rules(self) -> RulesInForce:
        return RulesInForce({"default": Budget()}, {"acme": 2}, {"fetch.ports": (80, 443)}, 1.0)

    def upstreams(self) -> tuple[RelayReport, ...]:
        return (UPSTREAM,)

    def drain_upstream(self, name: str, *, draining: bool) -> RelayReport:
        if name != UPSTREAM.name:
            raise UpstreamUnknown
        return msgspec.structs.replace(UPSTREAM, draining=draining)

    def engines(self) -> tuple[EngineReport, ...]:
        return (ENGINE,)

    def drain_engine(self, name: str, *, draining: bool) -> EngineReport:
        if name != ENGINE.name:
            raise EngineUnknown
        return msgspec.structs.replace(ENGINE, draining=draining)

    def caches(self) -> FakeCaches:
        return self.cached

    def observed(self) -> Observer:
        return self.observer

    def canary(self) -> FakeCanary:
        return self.tried

    def topology(self) -> FakeTopology:
        return self.placed

    async def reload(self) -> Reloaded:
        if self.reload_refused is not None:
            raise self.reload_refused
        return Reloaded(("default",), 2, ("auth.keys_file",), ("server.port",))

    def readiness(self) -> Readiness:
        return self.ready

    @asynccontextmanager
    async def body(self, bytes_max: int, caller: Caller) -> AsyncIterator[BodyBuffer]:
        self.buffers.append(FakeBuffer(bytes_max))
        self.open_buffers += 1
        self.entered.set()
        try:
            yield self.buffers[-1]
        finally:
            self.open_buffers -= 1
            self.left.set()

    @asynccontextmanager
    async def unpack(self, buffer: BodyBuffer) -> AsyncIterator[Unpacked]:
        assert isinstance(buffer, FakeBuffer)
        self.open_blobs += 1
        try:
            skeleton, blobs = self.unpacking(b"".join(buffer.chunks))
            yield Unpacked(skeleton, blobs, 1.0, 2.0)
        finally:
            self.open_blobs -= 1

    @asynccontextmanager
    async def answer(self, request: Request, unpacked: Unpacked | None) -> AsyncIterator[Answer]:
        self.requests.append(request)
        self.unpacked.append(unpacked)
        self.open_answers += 1
        self.entered.set()
        try:
            yield FakeAnswer(self)
        except BaseException as error:
            self.ended.append(type(error).__name__)
            # Leaving takes turns of the loop, as giving back real resources does.
            await asyncio.sleep(0)
            raise
        else:
            for _ in range(5):
                await asyncio.sleep(0)
            self.ended.append("whole")
        finally:
            self.open_answers -= 1
            self.left.set()

    def terms(self, caller: Caller) -> Terms:
        return Terms(
            budget=caller.budget,
            tenant=caller.tenant,
            image_formats=("jpeg", "png"),
            video_formats=("mp4",),
            urls=UrlTerms(("https", "data"), (80, 443), self.hosts),
            body_bytes_max=self.body_bytes_max,
            server={"media.decode_pixels_max": 128_000_000},
        )

    async def estimate(self, request: Request, unpacked: Unpacked | None) -> Estimate:
        self.requests.append(request)
        self.unpacked.append(unpacked)
        for step in self.before:
            await _play(step)
        return self.estimated

    def refused(self, request_id: str, received_at: float, error: FoveateError, caller: Caller | None) -> None:
        self.refusals.append(error.code)
        self.refused_tenants.append(caller.tenant if caller else None)

    async def metrics(self) -> tuple[bytes, str]:
        return b"a 1\n", "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def serving(
    service: FakeService, *, limits: ConnectionLimits | None = None, open_max: int = 100, body_seconds_max: float = 10.0
) -> AsyncIterator[HttpServer]:
    app = create_app(service, open_max=open_max, body_seconds_max=body_seconds_max)
    async with HttpServer(app, bind("127.0.0.1", 0), limits=limits) as server:
        yield server


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}


def with_parts(*parts: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}


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
