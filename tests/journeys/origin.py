"""An origin on loopback that serves pictures when it is told to, and a journey that may fetch from it."""

import asyncio
import base64
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from foveate.core.media import DataRef, UrlRef
from foveate.journey.rules import LiveRules
from foveate.journey.service import Journey


def content(picture: DataRef) -> bytes:
    """The bytes behind a data URL."""
    return base64.b64decode(picture.url.partition(",")[2])


class Origin:
    """Answers every path with ``body``, once ``open`` is set, but ``/hop`` with a redirect; counts what was asked."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.port = 0
        self.asked = 0
        self.open = asyncio.Event()
        self.early = 0
        """Bytes that are sent before."""
        self.breaking = False
        """Whether the connection is lost after them."""

    def url(self, path: str = "a.png") -> UrlRef:
        return UrlRef(f"http://127.0.0.1:{self.port}/{path}")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if request.path == "/hop":
            raise web.HTTPFound("/a.png")
        if self.early:
            reply = web.StreamResponse(headers={"content-type": "image/png"})
            await reply.prepare(request)
            await reply.write(self.body[: self.early])
            if self.breaking:
                assert request.transport is not None
                request.transport.close()
                return reply
            await self.open.wait()
            await reply.write(self.body[self.early :])
            return reply
        await self.open.wait()
        return web.Response(body=self.body, content_type="image/png")


@asynccontextmanager
async def origin(
    service: Journey, body: bytes, *, made: Callable[[bytes], Origin] = Origin, **tools: Any
) -> AsyncIterator[tuple[Any, Journey]]:
    """Serve ``body``, at first held back; the journey is the same server with its port allowed and these tools replaced.

    ``made`` makes another kind of origin.
    """
    serving = made(body)
    app = web.Application()
    app.router.add_get("/{name:.*}", serving.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    serving.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    rules = service.tools.rules.current
    policy = dataclasses.replace(rules.policy, ports=rules.policy.ports | {serving.port})
    live = LiveRules(dataclasses.replace(rules, policy=policy))
    try:
        yield (
            serving,
            Journey(dataclasses.replace(service.tools, **{"rules": live, **tools}), models=service.models),
        )
    finally:
        serving.open.set()
        await runner.cleanup()
