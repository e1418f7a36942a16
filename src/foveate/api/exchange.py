"""One request whose body is read, from its first header to its last byte: tell who asks, read, validate, answer.

Every exchange ends once: with an answer, with an error body, with an error frame and ``[DONE]`` if tokens were already
sent, or silently when the client has left. What the request held is free before an error is written.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveate.api import errors
from foveate.api.body import Body, BodyReader
from foveate.api.callers import caller_of
from foveate.api.convert import Arrival
from foveate.api.gate import Gate, Place
from foveate.api.wire import ClientGone, Header, Wire
from foveate.core.budget import Caller
from foveate.core.clock import now
from foveate.core.errors import FoveateError
from foveate.core.request import Request
from foveate.core.trace_context import trace_context
from foveate.journey.port import Service

Error = TypeVar("Error", bound=BaseException)

_log = logging.getLogger("foveate.api")

Parse = Callable[[bytes, Arrival], Request]
"""Validates a body and converts it. Raises Refused."""

DONE: Final = b"data: [DONE]\n\n"
"""Ends every stream of events."""

_DETAIL_CHARACTERS_MAX: Final = 500


class Exchange(Response, ABC):
    """What a route with a body returns: an ASGI response that does all the work when it is called.

    A subclass says how a valid request is answered (:meth:`answer`).
    """

    def __init__(self, service: Service, gate: Gate, parse: Parse, *, prefix: str, body_seconds_max: float) -> None:
        super().__init__()
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self.service = service
        self.recorded = False
        """Whether the journey records how the request ends; until then this exchange does."""
        self.timing = ""
        """The ``Server-Timing`` of a request that failed."""
        self._gate = gate
        self._parse = parse
        self._body_seconds_max = body_seconds_max
        self._began_at = now()
        self._scope = asyncio.timeout(None)
        self._aborted_by: FoveateError | None = None
        self._failure: FoveateError | None = None
        self._caller: Caller | None = None

    @abstractmethod
    async def answer(self, wire: Wire, request: Request, body: Body) -> None:
        """Answer a valid request on ``wire``. Raises FoveateError."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request. Raises nothing but cancellation."""
        wire = Wire(scope, receive, send, id=self.id)
        try:
            await self._within_scope(wire)
        except* ClientGone:
            wire.finished = True
        except* FoveateError as group:
            self._failure = _first(group)
        except* Exception as group:
            _log.error("request %s failed unexpectedly", self.id, exc_info=_first(group))
            self._failure = FoveateError()
        if self._failure is not None:
            if not self.recorded:
                # The journey records what it opened; what never came so far is recorded here, so that nothing is missing.
                self.service.refused(self.id, self._began_at, self._failure, self._caller)
            if not wire.finished:
                await self._fail(wire, self._failure)

    def abort(self, error: FoveateError) -> None:
        """End the exchange with this error, wherever it stands."""
        self._aborted_by = error
        self._scope.reschedule(asyncio.get_running_loop().time())

    async def _within_scope(self, wire: Wire) -> None:
        try:
            async with self._scope:
                # Before a byte of the body is read: who may not ask costs no upload and no memory.
                caller = self._caller = caller_of(self.service, wire.headers)
                with self._gate.enter(self, caller.tenant) as place:
                    async with asyncio.TaskGroup() as tasks:
                        await self._serve(wire, caller, place, tasks)
        except TimeoutError:
            # The scope has no time limit of its own: only ``abort`` ends it.
            raise self._aborted_by or FoveateError(detail="the exchange's scope ended by itself") from None

    async def _serve(self, wire: Wire, caller: Caller, place: Place, tasks: asyncio.TaskGroup) -> None:
        reader = BodyReader(self.service, wire, caller, seconds_max=self._body_seconds_max, on_large=place.large)
        async with AsyncExitStack() as pictures:
            async with AsyncExitStack() as buffer:
                received = await reader.receive(buffer)
                watcher = tasks.create_task(wire.watch())
                body = await reader.unpack(received, pictures)
            inline = len(body.unpacked.blobs) if body.unpacked is not None else 0
            arrival = Arrival(self.id, body.received_at, self.service.models, inline, caller)
            request = self._parse(body.json, arrival)
            trace = trace_context(wire.headers)
            if trace is not None:
                request = msgspec.structs.replace(request, trace=trace)
            place.known(media=bool(request.media))
            await self.answer(wire, request, body)
        watcher.cancel()

    async def _fail(self, wire: Wire, error: FoveateError) -> None:
        body = errors.body(error)
        _log.debug(
            "request %s ended with %s: %s %s", self.id, error.code, error.public, error.detail[:_DETAIL_CHARACTERS_MAX]
        )
        if wire.streaming:
            await wire.close_stream(b"data: " + body + b"\n\n" + DONE)
        elif not wire.started:
            await wire.reply(errors.status(error), body, [*errors.headers(error), *timing_header(self.timing)])


def timing_header(timing: str) -> list[Header]:
    """Return the header that tells where the time went; none where nothing is known."""
    return [(b"server-timing", timing.encode("ascii"))] if timing else []


def _first(group: BaseExceptionGroup[Error]) -> Error:
    """Return the first exception of a (nested) group: the one that ended the exchange."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
