"""One server's answer to one request: sends it, and reads what comes, a stream held back until it has begun.

It decides nothing: what an error means for the server, and whether another is asked, is the relay's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import aiohttp

from foveate.core.errors import UpstreamFailed
from foveate.engines.port import RelayEvent, RelayUsage, RelayWork
from foveate.engines.upstream import http
from foveate.engines.upstream.body import Body
from foveate.engines.upstream.frames import DONE, Read, Splitter, framed, read
from foveate.engines.upstream.http import UpstreamHttp
from foveate.engines.upstream.server import Server

PATHS: Final = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}


async def answer(
    upstreams: UpstreamHttp, server: Server, body: Body, work: RelayWork
) -> AsyncGenerator[RelayEvent, None]:
    """Send the request and yield its answer, beginning with its first output. Raises what :meth:`UpstreamHttp.post` does, and what the
    server says where it refuses or fails.
    """
    async with upstreams.post(server.config, PATHS[work.kind], body, work) as response:
        if response.status != 200:
            raise await http.refusal(response, server.config)
        if not work.stream:
            found = read(await http.whole(response, server.config), work)
            if found.error is not None:
                raise http.told(502, found.error, server.config.name)
            yield RelayEvent(found.data, usage=found.usage or RelayUsage(), last=True)
            return
        async with aclosing(_events(response, server, work)) as events:
            async for event in events:
                yield event


async def _events(
    response: aiohttp.ClientResponse, server: Server, work: RelayWork
) -> AsyncGenerator[RelayEvent, None]:
    """Yield a stream's events, held back until the first with output. Raises UpstreamFailed when it ends too early."""
    splitter = Splitter()
    held: list[Read] = []
    usage: RelayUsage | None = None
    begun = False
    async with aclosing(http.pieces(response, server.config)) as pieces:
        async for data in pieces:
            payloads = splitter.feed(data)
            found = [read(payload, work) for payload in payloads if payload != DONE]
            for one in found:
                usage = one.usage or usage
                if one.error is not None:
                    raise http.told(502, one.error, server.config.name)
            held += found
            begun = begun or any(one.begins for one in found)
            done = DONE in payloads
            if done:
                await http.ended(response)
                yield RelayEvent(_joined(held), _outputs(held), usage=usage or RelayUsage(), last=True)
                return
            if begun and held:
                yield RelayEvent(_joined(held), _outputs(held))
                held = []
    raise UpstreamFailed(detail=f"{server.config.name}: its stream ended without [DONE]")


def _joined(found: list[Read]) -> bytes:
    return b"".join(framed(one.data) for one in found if one.data)


def _outputs(found: list[Read]) -> tuple[int, ...]:
    return tuple(choice for one in found for choice in one.outputs)
