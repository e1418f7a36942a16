"""Passes requests on: to a server that has a place (``places``), for its ``answer``; before its first output, to another where one failed.

A request is sent again only while nothing of an answer has come. What was refused because a server has too much to do, or cannot be
reached, goes to any other; what a server failed on goes to one other only, so that a request that kills servers does not kill them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Final

import msgspec

from foveate.core.clock import now
from foveate.core.errors import (
    FoveateError,
    MediaNotHeld,
    StartupError,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnavailable,
    UpstreamUnknown,
    UpstreamUnusable,
)
from foveate.core.stages import Span
from foveate.engines.port import RelayEvent, RelayOutcome, RelayReport, RelayWork
from foveate.engines.upstream import http
from foveate.engines.upstream.affinity import chain
from foveate.engines.upstream.answer import answer
from foveate.engines.upstream.body import Body, Filling
from foveate.engines.upstream.config import RelayConfig
from foveate.engines.upstream.health import Watch
from foveate.engines.upstream.http import Gone, Stale, UpstreamHttp
from foveate.engines.upstream.places import Asking, Places
from foveate.engines.upstream.server import Server
from foveate.engines.upstream.store import EmbeddingStore
from foveate.runtime.arena import Arena

FAILURES_MAX: Final = 2
"""Servers that may fail on one request before it is given up."""
Say = Callable[[str], None]


class UpstreamRelay:
    """:class:`foveate.engines.port.Relay` over HTTP. Lives on the event loop."""

    def __init__(self, config: RelayConfig, arena: Arena, *, say: Say) -> None:
        self.config = config
        self.servers = tuple(Server(one, config) for one in config.servers)
        self._arena = arena
        self._say = say
        self._places = Places(self.servers, config)
        self._http: UpstreamHttp | None = None
        self._watch: Watch | None = None
        self._store = EmbeddingStore(config.store, arena, bytes_max=config.store_bytes_max) if config.store else None

    @property
    def ready(self) -> bool:
        """Whether any server is up and takes requests."""
        return any(server.usable and not server.draining for server in self.servers)

    @property
    def models(self) -> tuple[str, ...]:
        """Every model of any server, in the order of the configuration, by the names that clients use."""
        return tuple(dict.fromkeys(name for server in self.servers for name in server.models))

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return self._places.waiting

    def context_tokens_max(self, model: str) -> int:
        """The smallest context that a server states for the model; 0: none does."""
        stated = [server.context_tokens_max(model) for server in self.servers]
        return min((tokens for tokens in stated if tokens), default=0)

    @property
    def takes_embeddings(self) -> bool:
        """Whether pictures go on as embeddings; the settings allow no mix."""
        return self.servers[0].config.mode == "embeds"

    def needs_bytes(self, model: str) -> bool:
        """Whether any server of this model is sent bytes."""
        return any(server.config.mode != "url" for server in self.servers if model in server.models)

    def report(self) -> tuple[RelayReport, ...]:
        """See the port."""
        at = now()
        return tuple(server.report(at) for server in self.servers)

    def drain(self, name: str, *, draining: bool) -> RelayReport:
        """See the port. Raises UpstreamUnknown."""
        for server in self.servers:
            if server.config.name == name:
                server.draining = draining
                self._places.wake()
                return server.report(now())
        raise UpstreamUnknown

    def agrees(self, name: str) -> None:
        """See the port."""
        for server in self.servers:
            if server.config.name == name:
                server.compared("", now())
                self._places.wake()

    def hold_to(self, check: Callable[[str, str], Awaitable[str]]) -> None:
        """See the port."""
        assert self._watch is not None, "the relay was started"
        self._watch.check = check

    async def start(self) -> None:
        """Look at all servers, and wait until one is up. Raises StartupError."""
        config = self.config
        if self._store is not None:
            self._store.open()
        self._http = UpstreamHttp(user_agent=config.user_agent, connect_seconds=config.connect_seconds)
        self._watch = Watch(self.servers, self._http, config, say=self._say, changed=self._places.wake)
        self._watch.start()
        try:
            async with asyncio.timeout(config.start_seconds_max):
                await self._watch.first_up()
        except TimeoutError:
            found = "; ".join(f"{server.config.name}: {server.last_error}" for server in self.servers)
            raise StartupError(f"No upstream could be used. {found}") from None

    async def stop(self) -> None:
        """Close every connection."""
        if self._watch is not None:
            await self._watch.stop()
        if self._http is not None:
            await self._http.aclose()
        if self._store is not None:
            await self._store.aclose()

    async def forward(self, work: RelayWork) -> AsyncGenerator[RelayEvent, None]:
        """See the port."""
        links = chain(work)
        asking = Asking(work, links, work.text_tokens + sum(one.tokens for one in work.media), now())
        async with AsyncExitStack() as held:
            if self._store is not None:
                asking.stored = await held.enter_async_context(self._store.holding(work.media))
            while not asking.begun:
                server = await self._places.take(asking)
                asking.sent_at = asking.sent_at or now()
                async with aclosing(self._ask(server, asking)) as events:
                    async for event in events:
                        if not asking.begun:
                            asking.begun = True
                            await held.aclose()  # prefilled: the server has read what was stored
                        yield event

    async def _ask(self, server: Server, asking: Asking) -> AsyncGenerator[RelayEvent, None]:
        """Ask one server that has a place. Ends without an event where another may be asked; raises what is final."""
        work = asking.work
        outcome: RelayOutcome = "cancelled"
        try:
            body = Body(work, self._filling(server, asking), self._arena)
        except FoveateError:
            server.left(asking.demand, prefilled=False, outcome="failed")
            self._places.wake()
            raise
        try:
            assert self._http is not None, "the relay was started"
            async with aclosing(answer(self._http, server, body, work)) as events:
                async for found in events:
                    if not asking.begun:
                        server.prefilled(asking.demand)
                        found = msgspec.structs.replace(found, spans=_spans(asking), server=server.config.name)
                        body.close()
                    if found.last:
                        outcome = "answered"
                        server.answered(work.media)
                    yield found
        except Stale:
            outcome = "failed"
            again = server.config.name in asking.stale
            asking.stale.add(server.config.name)
            if again:
                self._note(server, asking, UpstreamFailed(detail=f"{server.config.name}: disconnected"))
        except Gone as error:
            outcome = "failed"
            self._note(server, asking, http.unavailable(server.config.name, error), gone=True)
        except FoveateError as error:
            outcome = _outcome(error)
            if asking.begun:
                self._fails(server, error)
                raise
            if asking.stored and isinstance(error, UpstreamRefused | UpstreamFailed):
                self._not_found(server, asking)
            elif body.named_only and isinstance(error, UpstreamRefused):
                self._lacking(server, asking, error)
            else:
                self._note(server, asking, error)
        finally:
            body.close()
            server.left(asking.demand, prefilled=asking.begun, outcome=outcome)
            self._places.wake()

    def _filling(self, server: Server, asking: Asking) -> Filling:
        mode, model = server.config.mode, server.models[asking.work.model]
        return Filling(model, mode, server.takes_uuids, server.held, stored=asking.stored)

    def _lacking(self, server: Server, asking: Asking, error: UpstreamRefused) -> None:
        """What was only named may be gone there: send it again, whole. Raises MediaNotHeld where only the client could."""
        server.lacks(asking.work.media)
        if asking.named:
            raise MediaNotHeld from error

    def _not_found(self, server: Server, asking: Asking) -> None:
        """What was stored may be gone, or of no use to this server: send it with the request."""
        assert self._store is not None
        server.lacks(asking.work.media)
        if server.resent == 1:
            self._say(f"upstream {server.config.name} did not take embeddings by name; does it run with the connector?")
        self._store.forget(asking.work.media)
        asking.stored = False

    def _note(self, server: Server, asking: Asking, error: FoveateError, *, gone: bool = False) -> None:
        """Take note of a failed attempt; raise ``error`` where no other server would help."""
        self._fails(server, error, gone=gone)
        asking.tried.add(server.config.name)
        asking.failures += isinstance(error, UpstreamFailed)
        if asking.error is None or not isinstance(error, UpstreamBusy | UpstreamUnavailable):
            asking.error = error
        if isinstance(error, UpstreamRefused) or asking.failures >= FAILURES_MAX:
            raise error

    def _fails(self, server: Server, error: FoveateError, *, gone: bool = False) -> None:
        """Judge a server by its answer. A refusal is the client's doing, and says that the server is well."""
        if isinstance(error, UpstreamBusy) or (isinstance(error, UpstreamUnavailable) and not gone):
            server.busy(now(), error.retry_after_seconds)
        elif (gone or isinstance(error, UpstreamFailed | UpstreamUnusable)) and server.failed(
            now(), error.detail, gone=gone
        ):
            self._say(f"upstream {server.config.name} is left out: {error.detail}")


def _spans(asking: Asking) -> tuple[Span, ...]:
    return (Span("llm_queue", asking.asked_at, asking.sent_at), Span("upstream", asking.sent_at, now()))


def _outcome(error: FoveateError) -> RelayOutcome:
    if isinstance(error, UpstreamBusy | UpstreamUnavailable):
        return "busy"
    return "refused" if isinstance(error, UpstreamRefused) else "failed"
