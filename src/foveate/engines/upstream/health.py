"""Looks at every server's health, again and again: the only way back for one that was left out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from foveate.core.clock import now
from foveate.core.errors import UpstreamFailed
from foveate.engines.upstream.config import RelayConfig
from foveate.engines.upstream.http import Gone, UpstreamHttp
from foveate.engines.upstream.server import Listed, Listing, Server

log = logging.getLogger(__name__)

LOOK_SECONDS_MAX: Final = 5.0
"""How long one look may take."""
STOP_SECONDS: Final = 1.0


class Watch:
    """One task that looks at all servers side by side. ``changed`` is called when one came up."""

    def __init__(
        self,
        servers: Sequence[Server],
        client: UpstreamHttp,
        config: RelayConfig,
        *,
        say: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._servers = servers
        self._client = client
        self._config = config
        self._say = say
        self._changed = changed
        self._one_up = asyncio.Event()
        self.check: Callable[[str, str], Awaitable[str]] | None = None
        """Asked about a server that is to get embeddings; returns what speaks against it."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._all(), name="looks at upstreams")

    async def first_up(self) -> None:
        """Wait until any server is up."""
        await self._one_up.wait()

    async def stop(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=STOP_SECONDS)

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for server in self._servers:
                tasks.create_task(self._look_on(server))

    async def _look_on(self, server: Server) -> None:
        while True:
            await self._look(server)
            if self.check is not None and server.to_compare(now()):
                await self._compare(server, self.check)
            await asyncio.sleep(self._config.health_seconds)

    async def _look(self, server: Server) -> None:
        """Take one look, whatever comes of it."""
        name, was_up = server.config.name, server.health.up
        try:
            listed = await self._found(server)
        except Gone as error:
            self._failed(server, f"cannot be connected to: {error}", gone=True)
        except UpstreamFailed as error:
            self._failed(server, error.detail, gone=False)
        except Exception as error:
            # Unforeseen, so told whole. The looks must go on, at the other servers too.
            log.exception("upstream %s could not be looked at", name)
            self._failed(server, f"could not be looked at: {type(error).__name__}", gone=False)
        else:
            server.looked_well(now(), listed)
            self._one_up.set()
            if not was_up:
                self._say(f"upstream {name} is up: {', '.join(server.models) or 'no model'}")
                self._changed()

    async def _compare(self, server: Server, check: Callable[[str, str], Awaitable[str]]) -> None:
        """Have it compared; whatever comes of it, it is looked at again."""
        name = server.config.name
        try:
            reason = await check(name, next(iter(server.models)))
        except Exception as error:
            # The looks must go on. Unforeseen, so told whole; the server gets no embeddings until a comparison succeeds.
            log.exception("upstream %s could not be compared", name)
            reason = f"it could not be compared: {type(error).__name__}"
        server.compared(reason, now())
        if reason:
            self._say(f"upstream {name} gets no embeddings: {reason}")
        else:
            self._changed()

    async def _found(self, server: Server) -> tuple[Listed, ...] | None:
        """Return its models, None where they need not be asked for. Raises Gone, UpstreamFailed."""
        seconds = min(LOOK_SECONDS_MAX, max(self._config.health_seconds, 1.0))
        path = self._config.health_path
        status, _ = await self._client.get(server.config, path, seconds)
        if status >= 400 and status not in (404, 405):
            raise UpstreamFailed(detail=f"{path} says {status}")
        if server.health.up:
            return None
        status, body = await self._client.get(server.config, "/v1/models", seconds)
        if status == 404 and server.config.models:
            return ()
        if status != 200:
            raise UpstreamFailed(detail=f"/v1/models says {status}")
        try:
            return tuple(msgspec.json.decode(body, type=Listing).data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UpstreamFailed(detail=f"/v1/models cannot be read: {error}") from error

    def _failed(self, server: Server, error: str, *, gone: bool) -> None:
        first = not server.last_error
        if server.failed(now(), error, gone=gone):
            self._say(f"upstream {server.config.name} is left out: {error}")
        elif first and not server.health.up:
            self._say(f"upstream {server.config.name} is not up yet: {error}")
