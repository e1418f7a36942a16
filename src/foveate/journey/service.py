"""The journey as the API sees it: opens requests, ends each exactly once, and gives back whatever they held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType

from foveate.core.budget import Adjustment, Caller
from foveate.core.clock import now
from foveate.core.errors import ArenaFull, BodyTooLarge, DeadlineExceeded, Draining, FoveateError
from foveate.core.request import Request
from foveate.engines.port import EngineEvent, FinishEvent, TokenEvent
from foveate.journey import job_of, prepare
from foveate.journey.arena_sink import ArenaSink
from foveate.journey.estimate import estimate
from foveate.journey.holds import SlotHold
from foveate.journey.port import Answer, BodyBuffer, Estimate, Readiness, Reloaded, RulesInForce, Terms, Unpacked, Usage
from foveate.journey.room import take
from foveate.journey.s7_generate import generate
from foveate.journey.tools import Tools
from foveate.media.headers.container import VIDEO_FORMATS
from foveate.media.messages import JobFailed, Unpack, UnpackDone
from foveate.observe.ledger import Outcome, RequestLedger, outcome_of


class JourneyAnswer:
    """One request under way (:class:`foveate.journey.port.Answer`)."""

    def __init__(self, service: Journey, request: Request, unpacked: Unpacked | None) -> None:
        self._service = service
        self._job = job_of(request, unpacked, service.tools)
        self._events: AsyncGenerator[EngineEvent, None] | None = None
        self._first: EngineEvent | None = None
        self._error: FoveateError | None = None
        self._finished = False

    async def __aenter__(self) -> JourneyAnswer:
        self._service.opened(self._job.ledger)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._events is not None:
                await self._events.aclose()
        finally:
            self._job.release()
            self._service.ended(self._job.ledger, *self._ending(error))

    async def begin(self) -> None:
        """Run the journey up to the first token."""
        tools = self._service.tools
        self._service.check_open()
        try:
            async with asyncio.timeout(max(self._job.deadline - now(), 0)):
                await prepare(self._job, tools)
                self._events = generate(self._job, tools)
                self._first = await anext(self._events)
        except TimeoutError as error:
            self._error = DeadlineExceeded(detail="before the first token")
            raise self._error from error
        except FoveateError as error:
            self._error = error
            raise
        # Prefill is over: the embeddings have been read, and the media path is free for others, however long the answer streams.
        self._job.release()
        self._note(self._first)

    async def events(self) -> AsyncIterator[TokenEvent | FinishEvent]:
        """Yield the output from the first token's event on."""
        assert self._events is not None
        assert self._first is not None
        event: EngineEvent = self._first
        while True:
            assert isinstance(event, TokenEvent | FinishEvent)
            self._finished = isinstance(event, FinishEvent) and event.last
            yield event
            if self._finished:
                return
            event = await self._next(self._events)
            self._note(event)

    async def _next(self, events: AsyncGenerator[EngineEvent, None]) -> EngineEvent:
        try:
            async with asyncio.timeout(max(self._job.deadline - now(), 0)):
                return await anext(events)
        except TimeoutError as error:
            self._error = DeadlineExceeded(detail="after the first token")
            raise self._error from error
        except FoveateError as error:
            self._error = error
            raise

    def server_timing(self) -> str:
        """The ``Server-Timing`` header's value for what has happened so far."""
        return self._job.ledger.server_timing()

    def usage(self) -> Usage:
        """Tokens so far."""
        counts = self._job.ledger.counts
        return Usage(
            prompt_tokens=counts.text_tokens + counts.visual_tokens,
            completion_tokens=counts.output_tokens,
            visual_tokens=counts.visual_tokens,
            cached_tokens=counts.cached_tokens,
            images=counts.images,
            frames=counts.frames,
        )

    def adjustments(self) -> tuple[Adjustment, ...]:
        """What was changed to make media fit the budget."""
        return tuple(self._job.adjustments)

    def _note(self, event: EngineEvent) -> None:
        if isinstance(event, TokenEvent):
            self._job.ledger.output(len(event.token_ids), now(), event.choice)
        elif isinstance(event, FinishEvent):
            self._job.ledger.counts.cached_tokens = max(self._job.ledger.counts.cached_tokens, event.cached_tokens)

    def _ending(self, raised: BaseException | None) -> tuple[Outcome, FoveateError | None]:
        error = self._error or (raised if isinstance(raised, FoveateError) else None)
        return ("answered", None) if self._finished and error is None else ending_of(error or raised)


def ending_of(raised: BaseException | None) -> tuple[Outcome, FoveateError | None]:
    """Return how a request that was not answered ended, by what was raised."""
    if isinstance(raised, FoveateError):
        return outcome_of(raised), raised
    if raised is None or isinstance(raised, asyncio.CancelledError | GeneratorExit):
        return "cancelled", None
    return "failed", FoveateError()


class Journey:
    """The service behind every route (:class:`foveate.journey.port.Service`)."""

    def __init__(self, tools: Tools, *, models: tuple[str, ...]) -> None:
        self.tools = tools
        self.models = models
        self.context_tokens_max = tools.prompt_side.context_tokens_max
        self.body_bytes_max = tools.limits.body_bytes_max
        self.inline_bytes_min = tools.limits.inline_bytes_min
        self._open = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def open_requests(self) -> int:
        """Requests under way."""
        return self._open

    def readiness(self) -> Readiness:
        """Whether a request can be answered now."""
        if self._draining:
            return Readiness(False, "shutting down")
        if not self.tools.engine.ready:
            return Readiness(False, "engine: loading or restarting")
        if not self.tools.media.ready:
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

    def ended(self, ledger: RequestLedger, outcome: Outcome, error: FoveateError | None) -> None:
        """Count a request out, with its one ending."""
        self._open -= 1
        if self._open == 0:
            self._idle.set()
        code, limit_name = (None, None) if error is None else (error.code, error.limit_name)
        self.tools.observer.ended(ledger.end(outcome, error_code=code, limit_name=limit_name, at=now()))

    @asynccontextmanager
    async def body(self, bytes_max: int) -> AsyncIterator[BodyBuffer]:
        """Open a buffer for a large body."""
        room = min(bytes_max, self.body_bytes_max)
        with ArenaSink(
            self.tools.arena,
            room,
            take=self._take_for_body,
            too_large=BodyTooLarge,
            limit_name="server.body_bytes_max",
        ) as buffer:
            buffer.open(room)
            yield buffer

    @asynccontextmanager
    async def unpack(self, buffer: BodyBuffer) -> AsyncIterator[Unpacked]:
        """Let a media worker take the inline pictures out of a large body."""
        assert isinstance(buffer, ArenaSink)
        self.check_open()
        body = buffer.take()
        try:
            out = take(self.tools, body.slot.size)
        except BaseException:
            body.release()
            raise
        try:
            try:
                done = await self._run_unpack(body, out)
            finally:
                body.release()
            blobs = (entry.error if entry.blob is None else entry.blob for entry in done.blobs)
            yield Unpacked(
                done.skeleton,
                tuple(blob for blob in blobs if blob is not None),
                started_at=done.started_at,
                ended_at=now(),
                hold=out,
            )
        finally:
            out.release()

    def _take_for_body(self, size: int) -> SlotHold:
        """Bodies on their way may fill half of the arena, so that slow or idle uploads do not keep everyone else's pictures out."""
        arena = self.tools.arena
        if arena.used_bytes - self._cached_bytes() + size > arena.capacity_bytes // 2:
            raise ArenaFull(detail="bodies and work under way hold half of the arena", retry_after_seconds=1.0)
        return take(self.tools, size)

    def _cached_bytes(self) -> int:
        return self.tools.processor_cache.stats().bytes + self.tools.encoder_cache.stats().bytes

    async def _run_unpack(self, body: SlotHold, out: SlotHold) -> UnpackDone:
        started = now()
        held = (body.retain(), out.retain())

        def release() -> None:
            for hold in held:
                hold.release()

        job = Unpack(body.slot, out.slot)
        deadline = started + self.tools.limits.item_seconds_max
        reply = await self.tools.media.run(job, on_done=release, deadline=deadline)
        if isinstance(reply, JobFailed):
            raise reply.error.error()
        assert isinstance(reply, UnpackDone)
        return UnpackDone(reply.job_id, reply.skeleton, reply.blobs, started, reply.ended_at)

    def refused(self, request_id: str, received_at: float, error: FoveateError) -> None:
        """Note a request that was refused before it could be understood."""
        self.tools.observer.refused(request_id, received_at, error, now())

    def caller(self, key: str | None, tier: str | None) -> Caller:
        """Tell who asks. Raises Unauthenticated, NotPermitted."""
        return self.tools.rules.current.caller(key, tier)

    def terms(self, caller: Caller) -> Terms:
        """The contract that holds for a caller."""
        return Terms(
            budget=caller.budget,
            tenant=caller.tenant,
            image_formats=self.tools.limits.pictures.formats,
            video_formats=VIDEO_FORMATS,
            urls=self.tools.rules.current.urls,
            body_bytes_max=self.body_bytes_max,
        )

    def rules(self) -> RulesInForce:
        """The rules that hold now, for an operator."""
        return self.tools.rules.current.in_force()

    async def reload(self) -> Reloaded:
        """Read the settings again and bring what may change into force. Raises SettingsRefused; the old ones then stay."""
        return await self.tools.reloads.reload()

    def answer(self, request: Request, unpacked: Unpacked | None) -> AbstractAsyncContextManager[Answer]:
        """Open the journey of one request."""
        return JourneyAnswer(self, request, unpacked)

    async def estimate(self, request: Request, unpacked: Unpacked | None) -> Estimate:
        """Price a request. Raises Draining, DeadlineExceeded."""
        self.check_open()
        job = job_of(request, unpacked, self.tools)
        self.opened(job.ledger)
        outcome: Outcome = "estimated"
        failure: FoveateError | None = None
        try:
            async with asyncio.timeout(max(job.deadline - now(), 0)):
                return await estimate(job, self.tools)
        except TimeoutError as error:
            outcome, failure = "failed", DeadlineExceeded(detail="while a request was priced")
            raise failure from error
        except BaseException as error:
            outcome, failure = ending_of(error)
            raise
        finally:
            job.release()
            self.ended(job.ledger, outcome, failure)

    async def metrics(self) -> tuple[bytes, str]:
        """The Prometheus exposition and its content type, rendered off the event loop."""
        return await asyncio.to_thread(self.tools.metrics.exposition)
