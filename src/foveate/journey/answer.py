"""One request under way: from its first step to its one ending, on which everything it held is given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

from foveate.core.budget import Adjustment
from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, FoveateError
from foveate.core.request import Request
from foveate.engines.port import EngineEvent, FinishEvent, RelayEvent, TokenEvent
from foveate.journey import job_of, prepare
from foveate.journey.port import Unpacked, Usage
from foveate.journey.relayed import pass_on
from foveate.journey.s7_generate import generate
from foveate.journey.together import scope
from foveate.observe.records import Outcome, outcome_of

if TYPE_CHECKING:
    from foveate.journey.service import Journey


class JourneyAnswer:
    """One request under way (:class:`foveate.journey.port.Answer`)."""

    def __init__(self, service: Journey, request: Request, unpacked: Unpacked | None) -> None:
        self._service = service
        self._job = job_of(request, unpacked, service.tools)
        self._events: AsyncGenerator[EngineEvent, None] | AsyncGenerator[RelayEvent, None] | None = None
        self._first: EngineEvent | RelayEvent | None = None
        self._error: FoveateError | None = None
        self._finished = False

    async def __aenter__(self) -> JourneyAnswer:
        self._job.serve_by(self._service.tools.roll_out.stable)
        self._service.opened(self._job.ledger)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._events is not None:
                await self._events.aclose()
        finally:
            self._job.end()
            self._service.ended(self._job, *self._ending(error))

    async def begin(self) -> None:
        """Run the journey up to the first token."""
        tools = self._service.tools
        self._service.check_open()
        try:
            async with asyncio.timeout(max(self._job.deadline - now(), 0)), scope() as self._job.tasks:
                await prepare(self._job, tools)
                self._events = (
                    pass_on(self._job, tools) if self._job.passing is not None else generate(self._job, tools)
                )
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
        event: EngineEvent | RelayEvent = self._first
        while True:
            assert isinstance(event, TokenEvent | FinishEvent)
            self._finished = isinstance(event, FinishEvent) and event.last
            yield event
            if self._finished:
                return
            event = await self._next(self._events)
            self._note(event)

    async def passed(self) -> AsyncIterator[bytes]:
        """Yield what the server behind this one answers, from its first output on."""
        assert self._events is not None
        assert self._first is not None
        event: EngineEvent | RelayEvent = self._first
        while True:
            assert isinstance(event, RelayEvent)
            self._finished = event.last
            yield event.data
            if self._finished:
                return
            event = await self._next(self._events)
            self._note(event)

    async def _next(
        self, events: AsyncGenerator[EngineEvent, None] | AsyncGenerator[RelayEvent, None]
    ) -> EngineEvent | RelayEvent:
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

    def _note(self, event: EngineEvent | RelayEvent) -> None:
        if isinstance(event, TokenEvent):
            self._job.ledger.output(len(event.token_ids), now(), event.choice)
        elif isinstance(event, FinishEvent):
            self._job.ledger.counts.cached_tokens = max(self._job.ledger.counts.cached_tokens, event.cached_tokens)
            self._job.ledger.spent.engine_token_ms += event.token_ms

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
