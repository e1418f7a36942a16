"""One engine process of several, as whoever chooses between them knows it. Nothing here waits but :meth:`Member.idle`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from foveate.core.clock import now
from foveate.decisions import health
from foveate.decisions.health import Health
from foveate.decisions.routing import Candidate
from foveate.engines.affinity import Memory
from foveate.engines.port import EngineInfo, EngineReport, Role
from foveate.engines.process_client import ProcessEngine

RECOVER_SECONDS: Final = 10.0
"""As ``upstream.recover_seconds``: until one that came back gets its whole share."""


class Outstanding:
    """What one process has to do of one kind, in tokens or rows, and in how many pieces."""

    def __init__(self, on_none: Callable[[], None]) -> None:
        """``on_none`` is called whenever the last piece has ended."""
        self.amount = 0.0
        self.pieces = 0
        self._on_none = on_none

    def begin(self, amount: float) -> None:
        """One piece more is under way."""
        self.amount += amount
        self.pieces += 1

    def end(self, amount: float) -> None:
        """A piece has ended, of which ``amount`` counts by now."""
        self.pieces -= 1
        self.amount = self.amount - amount if self.pieces else 0.0  # so that rounding does not add up
        if not self.pieces:
            self._on_none()


class Member:
    """A process in its place. ``number`` is the place's, from 0, and its name in reports."""

    def __init__(self, engine: ProcessEngine, number: int, role: Role = "pd") -> None:
        self._idle = asyncio.Event()
        self.engine = engine
        self.number = number
        self.role: Role = role
        self.answering = Outstanding(self._idle.set)
        self.encoding = Outstanding(self._idle.set)
        self.refused: EngineInfo | None = None
        """What it said of itself when it was found to be another model's."""
        self.held_back = False
        """An operator wants nothing new to go there."""
        self.leaving = False
        """It finishes what it has, to end."""
        self._memory = Memory()
        self._restarts = 0

    @property
    def open(self) -> bool:
        """Whether it may be given anything new."""
        return not (self.held_back or self.leaving)

    @property
    def memory(self) -> Memory:
        """What it was sent since it last started."""
        if self.engine.restarts != self._restarts:
            self._restarts = self.engine.restarts
            self._memory.forget()
        return self._memory

    async def idle(self) -> None:
        """Wait until it has nothing to do."""
        while self.answering.pieces or self.encoding.pieces:
            self._idle.clear()
            await self._idle.wait()

    def candidate(self, load: Outstanding, matched: int = 0) -> Candidate:
        """Return what the choice needs to know of it. Its own queues say when they are full, so its places do not count here."""
        eased = Health(up=True, since=self.engine.ready_since, eased=self.engine.restarts > 0)
        share = health.share(eased, now(), RECOVER_SECONDS)
        return Candidate(share=share, outstanding=load.amount, matched=matched)

    def report(self, *, usable: bool, restarts: int) -> EngineReport:
        """Tell about it; ``restarts`` are those of processes that had its place before."""
        return EngineReport(
            str(self.number),
            usable,
            restarts + self.engine.restarts,
            self.answering.pieces,
            self.answering.amount,
            role=self.role,
            draining=not self.open,
            leaving=self.leaving,
        )
