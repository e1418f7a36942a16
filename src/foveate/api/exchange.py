"""One request of a generating route, from its first header to its last byte: read, validate, ask the service, answer.

Every exchange ends once: with an answer, with an error body, with an error frame and ``[DONE]`` if tokens were already
sent, or silently when the client has left. The answer's context is left before an error is written, so what the request
held is free as soon as it has failed.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveate.api import errors
from foveate.api.body import Body, BodyReader
from foveate.api.convert import Arrival
from foveate.api.gate import Gate
from foveate.api.render import renderer
from foveate.api.wire import ClientGone, Header, Wire
from foveate.core.clock import now
from foveate.core.errors import FoveateError
from foveate.core.request import Request
from foveate.journey.port import Answer, Service

Error = TypeVar("Error", bound=BaseException)

_encoder = msgspec.json.Encoder()
_log = logging.getLogger("foveate.api")

Parse = Callable[[bytes, Arrival], Request]
"""Validates a body and converts it. Raises Refused."""

_DETAIL_CHARACTERS_MAX: Final = 500
_DONE: Final = b"data: [DONE]\n\n"


class Exchange(Response):
    """What a generating route returns: an ASGI response that does all the work when it is called."""

    def __init__(self, service: Service, gate: Gate, parse: Parse, *, prefix: str, body_seconds_max: float) -> None:
        super().__init__()
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self._service = service
        self._gate = gate
        self._parse = parse
        self._body_seconds_max = body_seconds_max
        self._timing = ""
        self._began_at = now()
        self._opened = False
        self._scope = asyncio.timeout(None)
        self._aborted_by: FoveateError | None = None
        self._failure: FoveateError | None = None

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
            if not self._opened:
                # The journey records what it opened; what never came so far is recorded here, so that nothing is missing.
                self._service.refused(self.id, self._began_at, self._failure)
            if not wire.finished:
                await self._fail(wire, self._failure)

    def abort(self, error: FoveateError) -> None:
        """End the exchange with this error, wherever it stands."""
        self._aborted_by = error
        self._scope.reschedule(asyncio.get_running_loop().time())

    async def _within_scope(self, wire: Wire) -> None:
        try:
            async with self._scope:
                with self._gate.enter(self):
                    async with asyncio.TaskGroup() as tasks:
                        await self._serve(wire, tasks)
        except TimeoutError:
            # The scope has no time limit of its own: only ``abort`` ends it.
            raise self._aborted_by or FoveateError(detail="the exchange's scope ended by itself") from None

    async def _serve(self, wire: Wire, tasks: asyncio.TaskGroup) -> None:
        reader = BodyReader(self._service, wire, seconds_max=self._body_seconds_max)
        async with AsyncExitStack() as pictures:
            async with AsyncExitStack() as buffer:
                received = await reader.receive(buffer)
                watcher = tasks.create_task(wire.watch())
                body = await reader.unpack(received, pictures)
            await self._answer(wire, body)
        watcher.cancel()

    async def _answer(self, wire: Wire, body: Body) -> None:
        inline = len(body.unpacked.blobs) if body.unpacked is not None else 0
        request = self._parse(body.json, Arrival(self.id, body.received_at, self._service.models, inline))
        async with self._service.answer(request, body.unpacked) as answer:
            self._opened = True
            try:
                await answer.begin()
                if request.stream:
                    await self._stream(wire, request, answer)
                else:
                    await self._whole(wire, request, answer)
            except BaseException:
                self._timing = answer.server_timing()
                raise

    async def _whole(self, wire: Wire, request: Request, answer: Answer) -> None:
        writer = renderer(request)
        async for event in answer.events():
            writer.add(event)
        reply = msgspec.json.encode(writer.whole(answer.usage()))
        await wire.reply(200, reply, _timing_header(answer.server_timing()))

    async def _stream(self, wire: Wire, request: Request, answer: Answer) -> None:
        writer = renderer(request)
        await wire.open_stream(_timing_header(answer.server_timing()))
        opening = b"".join(_frame(chunk) for chunk in writer.opening())
        if opening:
            await wire.write(opening)
        async for event in answer.events():
            chunk = writer.chunk(event)
            if chunk is not None:
                await wire.write(_frame(chunk))
        ending = _frame(writer.usage_chunk(answer.usage())) if request.include_usage else b""
        await wire.close_stream(ending + _DONE)

    async def _fail(self, wire: Wire, error: FoveateError) -> None:
        body = errors.body(error)
        _log.debug(
            "request %s ended with %s: %s %s", self.id, error.code, error.public, error.detail[:_DETAIL_CHARACTERS_MAX]
        )
        if wire.streaming:
            await wire.close_stream(b"data: " + body + b"\n\n" + _DONE)
        elif not wire.started:
            await wire.reply(errors.status(error), body, [*errors.headers(error), *_timing_header(self._timing)])


def _frame(chunk: Any) -> bytes:
    return b"data: " + _encoder.encode(chunk) + b"\n\n"


def _timing_header(timing: str) -> list[Header]:
    return [(b"server-timing", timing.encode("ascii"))] if timing else []


def _first(group: BaseExceptionGroup[Error]) -> Error:
    """Return the first exception of a (nested) group: the one that ended the exchange."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
