"""The journey as the API sees it: opens requests, counts them in and out, and names whatever else can be asked of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from foveate.core.budget import Caller
from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, Draining, EngineUnknown, FoveateError, UpstreamUnknown
from foveate.core.request import Request
from foveate.decisions.budget import CONTEXT_LIMIT, DECODE_LIMIT
from foveate.decisions.scaling import ScaleTerms
from foveate.engines.port import EngineReport, RelayReport
from foveate.journey import job_of
from foveate.journey.answer import JourneyAnswer, ending_of
from foveate.journey.bodies import Bodies
from foveate.journey.cache_port import CacheOperator
from foveate.journey.canary import Canaries
from foveate.journey.canary_port import CanaryOperator
from foveate.journey.estimate import estimate
from foveate.journey.in_flight_limits import SERVER_LIMITS
from foveate.journey.job import Job
from foveate.journey.operate_caches import CacheOperations
from foveate.journey.port import Answer, BodyBuffer, Estimate, Readiness, Reloaded, RulesInForce, Terms, Unpacked
from foveate.journey.tools import Tools
from foveate.journey.topology import Topologies
from foveate.journey.topology_port import TopologyOperator
from foveate.journey.upload import Upload
from foveate.media.headers.container import VIDEO_FORMATS
from foveate.models.unknown import CONTEXT_UNKNOWN
from foveate.observe.ledger import RequestLedger
from foveate.observe.observer import Observer
from foveate.observe.records import Outcome

UNKNOWN_TOKENS: Final = ("max_visual_tokens", "max_tenant_visual_tokens", SERVER_LIMITS["visual_tokens"])
"""The limits that cannot be kept where nobody here knows what media cost in tokens."""


class Journey:
    """The service behind every route (:class:`foveate.journey.port.Service`)."""

    def __init__(
        self,
        tools: Tools,
        *,
        models: tuple[str, ...],
        canaries: CanaryOperator | None = None,
        scale: ScaleTerms | None = None,
        encoders: int = 1,
    ) -> None:
        """Without ``canaries`` no new version can be tried. With ``scale`` the number of encode workers follows their queue.

        ``encoders``: how many there are where an operator asks for such, and there are none, without saying how many.
        """
        self.tools = tools
        self._canaries = canaries or Canaries(tools, None)
        self._topologies = Topologies(tools.roll_out, tools.observer, scale, encoders=encoders)
        self.relays = tools.relay is not None
        self._models = models
        self.body_bytes_max = tools.limits.body_bytes_max
        self.inline_bytes_min = tools.limits.inline_bytes_min
        self._bodies = Bodies(tools)
        self._open = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def models(self) -> tuple[str, ...]:
        """The models that are served; those of servers behind this one as they tell."""
        return self._models if self.tools.relay is None else self.tools.relay.models

    @property
    def context_tokens_max(self) -> int:
        """Tokens that prompt and answer may have together; 0: not known."""
        here = self.tools.roll_out.stable.prompt_side.context_tokens_max
        if self.tools.relay is None:
            return here
        stated = [self.tools.relay.context_tokens_max(model) for model in self.models]
        return min((tokens for tokens in (here, *stated) if 0 < tokens < CONTEXT_UNKNOWN), default=0)

    @property
    def open_requests(self) -> int:
        """Requests under way."""
        return self._open

    def readiness(self) -> Readiness:
        """Whether a request can be answered now."""
        if self._draining:
            return Readiness(False, "shutting down")
        if self.tools.relay is not None and not self.tools.relay.ready:
            return Readiness(False, "upstreams: none is up")
        if not self.tools.roll_out.stable.engine.ready:
            return Readiness(False, "engine: loading, restarting or drained")
        if not self.tools.roll_out.stable.media.ready:
            return Readiness(False, "media workers: none is ready")
        return Readiness(True)

    def drain(self) -> None:
        """Refuse new requests from now on; those under way go on."""
        self._draining = True

    async def idle(self) -> None:
        """Wait until no request is under way."""
        await self._idle.wait()

    def check_open(self) -> None:
        """Refuse a request that may not begin. Raises Draining."""
        if self._draining:
            raise Draining

    def opened(self, ledger: RequestLedger) -> None:
        """Count a request in."""
        self._open += 1
        self._idle.clear()
        self.tools.observer.opened(ledger)

    def ended(self, job: Job, outcome: Outcome, error: FoveateError | None) -> None:
        """Count a request out, with its one ending."""
        self._open -= 1
        if self._open == 0:
            self._idle.set()
        code, limit_name = (None, None) if error is None else (error.code, error.limit_name)
        record = job.ledger.end(outcome, error_code=code, limit_name=limit_name, at=now())
        self.tools.observer.ended(record)
        if outcome != "estimated":
            self.tools.observer.forbidden(error)
        if job.trial is not None and record.role is not None and outcome != "estimated":
            job.trial.ended(record.role, record, error)

    @asynccontextmanager
    async def body(self, bytes_max: int, caller: Caller) -> AsyncIterator[BodyBuffer]:
        """Open a buffer for a large body."""
        with self._bodies.received(bytes_max, caller) as buffer:
            yield buffer

    @asynccontextmanager
    async def unpack(self, buffer: BodyBuffer) -> AsyncIterator[Unpacked]:
        """Let a media worker take the inline pictures out of a large body."""
        assert isinstance(buffer, Upload)
        self.check_open()
        async with self._bodies.unpacked(buffer) as unpacked:
            yield unpacked

    def refused(self, request_id: str, received_at: float, error: FoveateError, caller: Caller | None) -> None:
        """Note a request that was refused before it could be understood."""
        self.tools.observer.refused(request_id, (received_at, now()), error, caller)

    def caller(self, key: str | None, tier: str | None) -> Caller:
        """Tell who asks. Raises Unauthenticated, NotPermitted."""
        return self.tools.rules.current.caller(key, tier)

    def terms(self, caller: Caller) -> Terms:
        """The contract that holds for a caller."""
        context = self.context_tokens_max
        tokens_known = self.tools.roll_out.stable.prompt_side.context_tokens_max < CONTEXT_UNKNOWN
        return Terms(
            not_enforced=() if tokens_known else UNKNOWN_TOKENS,
            budget=caller.budget,
            tenant=caller.tenant,
            image_formats=self.tools.limits.pictures.formats,
            video_formats=VIDEO_FORMATS,
            urls=self.tools.rules.current.urls,
            body_bytes_max=self.body_bytes_max,
            server={
                DECODE_LIMIT: self.tools.limits.decode_pixels_max,
                "media.animation_frames_max": self.tools.limits.pictures.frames_max,
                **({CONTEXT_LIMIT: context} if context else {}),
                **{SERVER_LIMITS[quantity]: most for quantity, most in self.tools.in_flight.capacity.items()},
            },
        )

    def rules(self) -> RulesInForce:
        """The rules that hold now, for an operator."""
        return self.tools.rules.current.in_force()

    async def reload(self) -> Reloaded:
        """Read the settings again and bring what may change into force. Raises SettingsRefused; the old ones then stay."""
        return await self.tools.reloads.reload()

    def upstreams(self) -> tuple[RelayReport, ...]:
        """The servers behind this one; none where the model runs here."""
        return () if self.tools.relay is None else self.tools.relay.report()

    def drain_upstream(self, name: str, *, draining: bool) -> RelayReport:
        """Send one of them nothing new, or let it have requests again. Raises UpstreamUnknown."""
        if self.tools.relay is None:
            raise UpstreamUnknown
        return self.tools.relay.drain(name, draining=draining)

    def engines(self) -> tuple[EngineReport, ...]:
        """The engine's processes, of the version that serves; none where the servers behind this one answer."""
        return () if self.tools.relay is not None else self.tools.roll_out.stable.engine.report()

    def drain_engine(self, name: str, *, draining: bool) -> EngineReport:
        """Give one of them nothing new, or let it have requests again. Raises EngineUnknown."""
        if self.tools.relay is not None:
            raise EngineUnknown
        return self.tools.roll_out.stable.engine.drain(name, draining=draining)

    def caches(self) -> CacheOperator:
        """What an operator may do with the caches."""
        return CacheOperations(self.tools)

    def observed(self) -> Observer:
        """What was seen of requests."""
        return self.tools.observer

    def canary(self) -> CanaryOperator:
        """What an operator may do with a new version of the model."""
        return self._canaries

    async def aclose(self) -> None:
        """Give up what an operator asked for and is not done."""
        await self._topologies.aclose()

    def topology(self) -> TopologyOperator:
        """What an operator may do with the topology."""
        return self._topologies

    def answer(self, request: Request, unpacked: Unpacked | None) -> AbstractAsyncContextManager[Answer]:
        """Open the journey of one request."""
        return JourneyAnswer(self, request, unpacked)

    async def estimate(self, request: Request, unpacked: Unpacked | None) -> Estimate:
        """Price a request. Raises Draining, DeadlineExceeded."""
        job = job_of(request, unpacked, self.tools)
        job.serve_by(job.serving)
        self.opened(job.ledger)
        outcome: Outcome = "estimated"
        failure: FoveateError | None = None
        try:
            self.check_open()
            async with asyncio.timeout(max(job.deadline - now(), 0)):
                found = await estimate(job, self.tools)
                # The request log says why the request would not be admitted.
                failure = found.refusals[0].error() if found.refusals else None
                return found
        except TimeoutError as error:
            outcome, failure = "failed", DeadlineExceeded(detail="while a request was priced")
            raise failure from error
        except BaseException as error:
            outcome, failure = ending_of(error)
            raise
        finally:
            job.end()
            self.ended(job, outcome, failure)

    async def metrics(self) -> tuple[bytes, str]:
        """The Prometheus exposition and its content type.

        It is rendered on the event loop, which a thread would only share the interpreter with; where what is read may wait, in one.
        """
        metrics = self.tools.metrics
        return await asyncio.to_thread(metrics.exposition) if metrics.waits else metrics.exposition()
