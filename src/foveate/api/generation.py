"""A generating request: run its journey up to the first token, then answer at once or as a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from foveate.api.body import Body
from foveate.api.exchange import DONE, Exchange, timing_header
from foveate.api.render import renderer
from foveate.api.replies import usage_reply
from foveate.api.wire import Header, Wire
from foveate.core.request import Request
from foveate.journey.port import Answer

_encoder = msgspec.json.Encoder()


class Generation(Exchange):
    """One request of ``/v1/chat/completions`` or ``/v1/completions``.

    The answer's context is left before an error is written, so what the request held is free as soon as it has failed.
    """

    async def answer(self, wire: Wire, request: Request, body: Body) -> None:
        """See :class:`Exchange`."""
        async with self.service.answer(request, body.unpacked) as answer:
            self.recorded = True
            try:
                await answer.begin()
                if request.document is not None:
                    await _passed(wire, request, answer)
                elif request.stream:
                    await _stream(wire, request, answer)
                else:
                    await _whole(wire, request, answer)
            except BaseException:
                self.timing = answer.server_timing()
                raise


async def _whole(wire: Wire, request: Request, answer: Answer) -> None:
    writer = renderer(request, answer.adjustments())
    async for event in answer.events():
        writer.add(event)
    reply = _encoder.encode(writer.whole(answer.usage()))
    await wire.reply(200, reply, _headers(answer))


async def _stream(wire: Wire, request: Request, answer: Answer) -> None:
    writer = renderer(request, answer.adjustments())
    await wire.open_stream(_headers(answer))

    def frame(chunk: Any) -> bytes:
        so_far = request.continuous_usage
        return _frame(msgspec.structs.replace(chunk, usage=usage_reply(answer.usage())) if so_far else chunk)

    opening = b"".join(frame(chunk) for chunk in writer.opening())
    if opening:
        await wire.write(opening)
    async for event in answer.events():
        chunk = writer.chunk(event)
        if chunk is not None:
            await wire.write(frame(chunk))
    ending = _frame(writer.usage_chunk(answer.usage())) if request.include_usage else b""
    await wire.close_stream(ending + DONE)


async def _passed(wire: Wire, request: Request, answer: Answer) -> None:
    """Hand on what a server behind this one answers."""
    async for data in answer.passed():
        if not request.stream:
            await wire.reply(200, data, _headers(answer))
            continue
        if not wire.started:
            await wire.open_stream(_headers(answer))
        if data:
            await wire.write(data)
    if request.stream:
        await wire.close_stream(DONE)


def _headers(answer: Answer) -> list[Header]:
    adjusted = len(answer.adjustments())
    told: list[Header] = [(b"x-foveate-adjusted", b"%d" % adjusted)] if adjusted else []
    return [*timing_header(answer.server_timing()), *told]


def _frame(chunk: Any) -> bytes:
    return b"data: " + _encoder.encode(chunk) + b"\n\n"
