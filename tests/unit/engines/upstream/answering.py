"""A real HTTP server in the upstream's place, that records what reaches it and answers as it is told; and requests to send it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from foveate.core.clock import now
from foveate.core.document import Document, MediaHole
from foveate.core.memory import Slot
from foveate.engines.port import RelayedMedia, RelayEvent, RelayWork
from foveate.engines.upstream.config import RelayConfig, ServerConfig
from foveate.engines.upstream.relay import UpstreamRelay
from foveate.runtime.arena import Arena

Answer = Callable[["Upstream", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
numbers = itertools.count(1)


def chunk(text: str | None = None, **more: Any) -> dict[str, Any]:
    """One piece of a stream; without a text it is the opening that only says who speaks."""
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    return {"id": "theirs", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more}


USAGE = {"prompt_tokens": 30, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}


async def stream(upstream: Upstream, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer ``Hello`` as a stream or whole, as asked."""
    if not body.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
        return web.json_response({"id": "theirs", "model": body["model"], "choices": [choice], "usage": USAGE})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    ending = {"id": "theirs", "model": body["model"], "choices": [], "usage": USAGE, "metrics": {"queue_time_ms": 1.5}}
    for part in (chunk(), chunk("Hel"), chunk("lo"), ending):
        await response.write(f"data: {json.dumps(part)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def failing(status: int, message: str = "no", **headers: str) -> Answer:
    """Answer with an error in OpenAI's shape."""

    async def answer(upstream: Upstream, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(
            {"error": {"message": message, "type": "theirs", "param": None, "code": 7}}, status=status, headers=headers
        )

    return answer


async def in_pieces(request: web.Request, status: int, pieces: list[bytes]) -> web.StreamResponse:
    """Answer with pieces that arrive one by one."""
    response = web.StreamResponse(status=status, headers={"content-type": "application/json"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0.05)
    return response


async def cut(upstream: Upstream, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Begin to answer, then cut the connection."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for part in (chunk(), chunk("Hel"))[: upstream.chunks_before_cut]:
        await response.write(f"data: {json.dumps(part)}\n\n".encode())
    assert request.transport is not None
    request.transport.abort()
    return response


async def endless(upstream: Upstream, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Stream until the client leaves, and note that it did."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    try:
        while True:
            await response.write(f"data: {json.dumps(chunk('x'))}\n\n".encode())
            await asyncio.sleep(0.01)
    except (ConnectionResetError, asyncio.CancelledError):
        upstream.left.set()
        raise


class Upstream:
    """The server. ``answers`` are played in order, the last one again and again."""

    def __init__(self, *answers: Answer, owner: str = "vllm", name: str = "a") -> None:
        self.answers = list(answers) or [stream]
        self.owner = owner
        self.name = name
        self.bodies: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []
        self.healthy = True
        self.listing: list[bytes] = []
        """The list of models in pieces, where it is not the usual one."""
        self.chunks_before_cut = 2
        self.left = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.port = 0

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.raw.append(await request.read())
        self.headers.append(request.headers)
        self.bodies.append(json.loads(self.raw[-1]))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await self.gate.wait()
        return await answer(self, request, self.bodies[-1])

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if self.listing:
            return await in_pieces(request, 200, self.listing)
        return web.json_response({"data": [{"id": "m", "owned_by": self.owner, "max_model_len": 4096}]})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if self.healthy else 503)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Upstream]:
        """Listen."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            self.gate.set()
            await runner.cleanup()

    def config(self, **more: Any) -> ServerConfig:
        """What the relay is told of it."""
        return ServerConfig(self.name, f"http://127.0.0.1:{self.port}", **more)


@asynccontextmanager
async def relaying(*servers: ServerConfig, arena: Arena | None = None, **more: Any) -> AsyncIterator[UpstreamRelay]:
    """A relay in front of these servers."""
    settings = {"user_agent": "test", "health_seconds": 0.05, "start_seconds_max": 10.0, **more}
    relay = UpstreamRelay(RelayConfig(servers, **settings), arena or Arena(1 << 20), say=lambda text: None)
    try:
        await relay.start()
        async with asyncio.timeout(10):
            while not all(server.health.up or server.last_error for server in relay.servers):
                await asyncio.sleep(0.01)
        yield relay
    finally:
        await relay.stop()


def picture(arena: Arena, data: bytes, name: str = "foveate-1", tokens: int = 100) -> RelayedMedia:
    """A medium whose bytes lie in the arena."""
    slot = arena.allocate(len(data))
    arena.view(slot)[:] = data
    return RelayedMedia(name, "image/png", (Slot(slot.offset, len(data)),), None, tokens)


def work(*media: RelayedMedia, text: str = "hi", **more: Any) -> RelayWork:
    """A chat with these media before its text."""
    pieces: list[bytes | MediaHole] = [b'"messages":[{"role":"user","content":[']
    for index in range(len(media)):
        pieces += [MediaHole(index, "image_url"), b","]
    pieces.append(json.dumps({"type": "text", "text": text}).encode() + b"]}]")
    fields: dict[str, Any] = {
        "request_id": f"chatcmpl-{next(numbers)}",
        "kind": "chat",
        "model": "m",
        "media": media,
        "text_tokens": len(text) // 4 + 10,
        "stream": True,
        "usage": False,
        "salt": "",
        "deadline": now() + 30,
    }
    fields |= more
    head = b'"temperature":0,"stream":true,' if fields["stream"] else b'"temperature":0,'
    return RelayWork(**{**fields, "document": Document(tuple(pieces), head=head)})


async def answered(relay: UpstreamRelay, asked: RelayWork) -> list[RelayEvent]:
    """Take a request through the relay."""
    events: list[RelayEvent] = []
    await collected(relay, asked, events)
    return events


async def collected(relay: UpstreamRelay, asked: RelayWork, events: list[RelayEvent]) -> None:
    """The same into ``events``, which then has what came before an error."""
    async for event in relay.forward(asked):
        events.append(event)  # noqa: PERF401 - what came before an error is wanted too


def payloads(events: list[RelayEvent]) -> list[dict[str, Any]]:
    """What was sent to the client, event by event of its stream."""
    frames = b"".join(event.data for event in events).split(b"\n\n")
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames if frame]


def text(events: list[RelayEvent]) -> str:
    """The text that the client was sent."""
    choices = [choice for payload in payloads(events) for choice in payload["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
