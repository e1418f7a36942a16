"""A scripted service behind the API, and a real server in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.unit.api.fake_admin import FakeCaches, FakeCanary, FakeTopology

from foveate.api.app import create_app
from foveate.api.protocol import ConnectionLimits
from foveate.api.server import HttpServer, bind
from foveate.core.budget import Adjustment, Budget, Caller
from foveate.core.errors import EngineUnknown, FoveateError, NotPermitted, Unauthenticated, UpstreamUnknown
from foveate.core.media import Blob
from foveate.core.memory import Slot
from foveate.core.request import Request
from foveate.engines.port import EngineReport, FinishEvent, RelayReport, TokenEvent, TokenLogprob, TokenStep
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
from foveate.observe.metrics import Metrics
from foveate.observe.observer import Observer

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
    cached: FakeCaches = field(default_factory=FakeCaches)
    observer: Observer = field(default_factory=lambda: Observer(Metrics(), None))
    tried: FakeCanary = field(default_factory=FakeCanary)
    placed: FakeTopology = field(default_factory=FakeTopology)
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
