"""Which server is asked next, and the line of those that wait for a place at any.

Of the servers that may be asked, the choice itself is :func:`foveate.decisions.routing.pick`. Sends nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from foveate.core.clock import now
from foveate.core.errors import FoveateError, MediaNotHeld, QueueFull, UpstreamBusy, UpstreamUnavailable
from foveate.decisions.routing import pick
from foveate.engines.affinity import Link
from foveate.engines.port import RelayWork
from foveate.engines.upstream.config import RelayConfig
from foveate.engines.upstream.server import Server


class Asking(msgspec.Struct):
    """One request on its way through the servers: what it weighs, who has been asked, what went wrong last."""

    work: RelayWork
    links: tuple[Link, ...]
    demand: float
    asked_at: float
    sent_at: float = 0.0
    begun: bool = False
    stored: bool | None = None
    failures: int = 0
    stale: set[str] = msgspec.field(default_factory=set)
    tried: set[str] = msgspec.field(default_factory=set)
    error: FoveateError | None = None

    @property
    def named(self) -> bool:
        """Whether any of its media can only be named."""
        return any(not one.slots and one.url is None and one.embeddings is None for one in self.work.media)


class Places:
    """The places at all servers. Lives on the event loop."""

    def __init__(self, servers: Sequence[Server], config: RelayConfig) -> None:
        self._servers = servers
        self._config = config
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turn = 0

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    async def take(self, asking: Asking) -> Server:
        """Choose a server, waiting for a place while all are full.

        Raises QueueFull when too many wait, MediaNotHeld, and where there is none to ask what went wrong with those that were.
        """
        while True:
            server = self._choose(asking)
            if server is not None:
                server.began(asking.demand, asking.links)
                return server
            if len(self._waiting) >= self._config.waiting_max:
                raise QueueFull(detail=f"{len(self._waiting)} requests wait for a place at an upstream")
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)

    def _choose(self, asking: Asking) -> Server | None:
        """Return the server to ask, None where all are full. Raises what went wrong where there is none to ask."""
        at, work = now(), asking.work
        able = [
            server
            for server in self._servers
            if server.config.name not in asking.tried
            and work.only in ("", server.config.name)
            and server.may_be_asked(work.model, at, alone=bool(work.only))
        ]
        if asking.named:
            able = [server for server in able if server.holds(one for one in work.media if not one.slots)]
            if not able and asking.error is None:
                raise MediaNotHeld
        if not able:
            raise asking.error or self._nobody(work.model)
        self._turn += 1
        chosen = pick(
            [server.candidate(asking.links, at) for server in able],
            asking.demand,
            bound=self._config.affinity_bound,
            turn=self._turn,
        )
        return None if chosen is None else able[chosen]

    def _nobody(self, model: str) -> FoveateError:
        up = [server for server in self._servers if server.usable and model in server.models and not server.draining]
        if up:
            return UpstreamBusy(detail="every upstream said so just now", retry_after_seconds=1.0)
        return UpstreamUnavailable(detail="none is up", retry_after_seconds=1.0)

    def wake(self) -> None:
        """Have those who wait for a place look again, in the order they came."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
