"""One or several engine processes as one engine: each request goes to the one that costs it least (:mod:`foveate.decisions.routing`).

Which that is: by the prompt tokens under way there, by what it probably has cached of the prompt, by whether it came back just now. A
process that ended takes what it held with it, as :class:`foveate.core.errors.EngineDied`; the next try finds the others. One that came back
with another model than the rest is not used, nor with another vision encoder than the one that pictures' path was checked with.

Does not cover: starting a process again (:mod:`foveate.engines.process_client`), and whether to try again (the journey).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from foveate.core.clock import now
from foveate.core.errors import EngineUnavailable, QueueFull, StartupError
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot
from foveate.decisions import health
from foveate.decisions.health import Health
from foveate.decisions.ownership import owner
from foveate.decisions.routing import STREAM_TOKENS, Candidate, pick
from foveate.encoders.port import UNKNOWN, Purpose
from foveate.engines.affinity import Link, Memory
from foveate.engines.arrivals import Arrivals
from foveate.engines.port import EngineEvent, EngineInfo, EngineReport, EngineWork, Form
from foveate.engines.process_client import ProcessEngine
from foveate.engines.prompt_chain import chain

_LOG = logging.getLogger("foveate.engine")

AFFINITY_BOUND: Final = 1.25
"""As ``upstream.affinity_bound``: times the mean load, beyond which what is cached no longer counts."""
RECOVER_SECONDS: Final = 10.0
"""As ``upstream.recover_seconds``: until one that came back gets its whole share."""


class _Load:
    """What one process has to do of one kind, in tokens or rows, and in how many pieces."""

    def __init__(self) -> None:
        self.amount = 0.0
        self.pieces = 0

    def begin(self, amount: float) -> None:
        self.amount += amount
        self.pieces += 1

    def end(self, amount: float) -> None:
        self.pieces -= 1
        self.amount = self.amount - amount if self.pieces else 0.0  # so that rounding does not add up


class Member:
    """One process, and what is known of it. Nothing here waits."""

    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine
        self.answering = _Load()
        self.encoding = _Load()
        self.refused: EngineInfo | None = None
        """What it said of itself when it was found to be another model's."""
        self._memory = Memory()
        self._restarts = 0

    @property
    def memory(self) -> Memory:
        """What it was sent since it last started."""
        if self.engine.restarts != self._restarts:
            self._restarts = self.engine.restarts
            self._memory.forget()
        return self._memory

    def candidate(self, load: _Load, matched: int = 0) -> Candidate:
        """Return what the choice needs to know of it. Its own queues say when they are full, so its places do not count here."""
        eased = Health(up=True, since=self.engine.ready_since, eased=self.engine.restarts > 0)
        share = health.share(eased, now(), RECOVER_SECONDS)
        return Candidate(share=share, outstanding=load.amount, matched=matched)


class Fleet:
    """Implements :class:`foveate.engines.port.Engine` and :class:`foveate.encoders.port.Encoder`. Lives on the event loop."""

    def __init__(self, engines: Sequence[ProcessEngine]) -> None:
        """``engines``: at least one, of the same configuration."""
        self._members = [Member(engine) for engine in engines]
        self.accepts: frozenset[Form] = engines[0].accepts
        self.features = engines[0].features
        self._info: EngineInfo | None = None
        self._held_to = ""
        self._answered = self._encoded = 0
        """Turns taken."""

    # ------------------------------------------------------------------------------------------------------ life cycle

    @property
    def ready(self) -> bool:
        """Whether any process can be asked now."""
        return bool(self._usable())

    @property
    def info(self) -> EngineInfo:
        """What the processes in use say of themselves."""
        self._usable()
        if self._info is None:
            raise EngineUnavailable(detail="no engine was ever ready")
        return self._info

    @property
    def engines(self) -> list[ProcessEngine]:
        """The processes, in order."""
        return [member.engine for member in self._members]

    @property
    def restarts(self) -> int:
        """How many processes were replaced."""
        return sum(member.engine.restarts for member in self._members)

    def report(self) -> tuple[EngineReport, ...]:
        """See the port."""
        usable = self._usable()
        return tuple(
            EngineReport(
                str(index), member in usable, member.engine.restarts, member.answering.pieces, member.answering.amount
            )
            for index, member in enumerate(self._members)
        )

    async def start(self) -> None:
        """Start all processes side by side. The first that fails fails the whole. Raises StartupError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for member in self._members:
                    tasks.create_task(member.engine.start())
        except* StartupError as group:
            raise group.exceptions[0] from None
        self._info = self._members[0].engine.info

    def hold(self) -> None:
        """From now on use no process with another vision encoder than the one in use, though all were to come back with it: the path that
        pictures take has been checked with this one. Raises EngineUnavailable before the start.
        """
        self._held_to = self.info.encoder_version

    async def stop(self, *, seconds_max: float) -> None:
        """End all processes."""
        await asyncio.gather(*(member.engine.stop(seconds_max=seconds_max) for member in self._members))

    def _usable(self) -> list[Member]:
        """Return the processes that are ready with the model that this engine has.

        That is the one that the first of them had, for as long as any has it: embeddings and prompts under way are made for it.
        """
        ready = [member for member in self._members if member.engine.ready]
        able = [member for member in ready if self._held_to in ("", member.engine.info.encoder_version)]
        if able and not any(member.engine.info == self._info for member in able):
            self._info = able[0].engine.info
        usable = [member for member in able if member.engine.info == self._info]
        for member in ready:
            if member not in usable and member.refused != member.engine.info:
                member.refused = member.engine.info
                why = "the others are" if member in able else "embeddings were checked (start the server again) with"
                _LOG.error("an engine is not used: it is %s, %s %s", member.engine.info, why, self._info)
        return usable

    # ---------------------------------------------------------------------------------------------------------- engine

    def generate(self, work: EngineWork, arrivals: Arrivals | None = None) -> AsyncGenerator[EngineEvent, None]:
        """See the port. A process without a place is passed over while another may have one."""
        return self._generate(work, arrivals)

    async def _generate(self, work: EngineWork, arrivals: Arrivals | None) -> AsyncGenerator[EngineEvent, None]:
        links = chain(work, self.info.picture_token_id) if len(self._members) > 1 else ()
        full: list[Member] = []
        while True:
            able = [member for member in self._usable() if member not in full]
            member = self._choose(able, len(work.token_ids), links)
            member.memory.note(links)
            try:
                async with aclosing(self._ask(member, work, arrivals)) as events:
                    async for event in events:
                        yield event
                return
            except QueueFull:  # raised before the first event only
                full.append(member)
                if all(other in full for other in self._usable()):
                    raise

    async def _ask(
        self, member: Member, work: EngineWork, arrivals: Arrivals | None
    ) -> AsyncGenerator[EngineEvent, None]:
        """Have one process answer, and keep count of what it has to do."""
        weight = float(len(work.token_ids))
        member.answering.begin(weight)
        try:
            async with aclosing(member.engine.generate(work, arrivals)) as events:
                async for event in events:
                    if weight != STREAM_TOKENS:
                        member.answering.amount += STREAM_TOKENS - weight
                        weight = STREAM_TOKENS
                    yield event
        finally:
            member.answering.end(weight)

    def _choose(self, able: Sequence[Member], demand: float, links: Sequence[Link] = ()) -> Member:
        """Return where the prompt costs least. Raises EngineUnavailable."""
        self._answered += 1
        candidates = [member.candidate(member.answering, member.memory.matched(links)) for member in able]
        return able[_picked(candidates, demand, self._answered)]

    # --------------------------------------------------------------------------------------------------------- encoder

    async def encode(
        self, prepared: PreparedImage, out: Slot, *, deadline: float, purpose: Purpose = UNKNOWN
    ) -> EncodedImage:
        """See the port. Pictures are spread over the processes by content, as over encode workers."""
        member = self._encoder(purpose.content, float(prepared.rows))
        member.encoding.begin(prepared.rows)
        try:
            return await member.engine.encode(prepared, out, deadline=deadline, purpose=purpose)
        finally:
            member.encoding.end(prepared.rows)

    def _encoders(self) -> list[Member]:
        """Return the processes that can encode now."""
        return self._usable()

    def _encoder(self, content: str, rows: float) -> Member:
        usable = self._encoders()
        loads = {index: member.encoding.amount for index, member in enumerate(self._members) if member in usable}
        if content and loads:
            return self._members[owner(content, loads, rows)]
        self._encoded += 1
        return usable[_picked([member.candidate(member.encoding) for member in usable], rows, self._encoded)]


def _picked(candidates: Sequence[Candidate], demand: float, turn: int) -> int:
    chosen = pick(candidates, demand, bound=AFFINITY_BOUND, turn=turn) if candidates else None
    if chosen is None:
        raise EngineUnavailable(detail="no engine process is ready")
    return chosen
