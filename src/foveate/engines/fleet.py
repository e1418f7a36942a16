"""One or several engine processes as one engine: each request goes to the one that costs it least (:mod:`foveate.decisions.routing`).

Which that is: by the prompt tokens under way there, by what it probably has cached of the prompt, by whether it came back just now. One
that an operator drains is given nothing new. A process that ended takes what it held with it, as
:class:`foveate.core.errors.EngineDied`; the next try finds the others. One that came back with another model than the rest is not used, nor
with another vision encoder than the one that pictures' path was checked with.

Does not cover: starting a process again (:mod:`foveate.engines.process_client`), and whether to try again (the journey).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from foveate.core.errors import EngineUnavailable, EngineUnknown, QueueFull, StartupError
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot
from foveate.decisions.ownership import owner
from foveate.decisions.routing import STREAM_TOKENS, Candidate, pick
from foveate.encoders.port import UNKNOWN, Purpose
from foveate.engines.affinity import Link
from foveate.engines.arrivals import Arrivals
from foveate.engines.member import Member
from foveate.engines.port import EngineEvent, EngineInfo, EngineReport, EngineWork, Form
from foveate.engines.process_client import ProcessEngine
from foveate.engines.prompt_chain import chain

_LOG = logging.getLogger("foveate.engine")

AFFINITY_BOUND: Final = 1.25
"""As ``upstream.affinity_bound``: times the mean load, beyond which what is cached no longer counts."""


class Fleet:
    """Implements :class:`foveate.engines.port.Engine` and :class:`foveate.encoders.port.Encoder`. Lives on the event loop."""

    def __init__(self, engines: Sequence[ProcessEngine]) -> None:
        """``engines``: at least one, of the same configuration."""
        self._members = [Member(engine, number) for number, engine in enumerate(engines)]
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
        return bool(self._open())

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
        return tuple(member.report(usable=member in usable, restarts=0) for member in self._members)

    def drain(self, name: str, *, draining: bool) -> EngineReport:
        """See the port."""
        for member, report in zip(self._members, self.report(), strict=True):
            if report.name == name:
                member.held_back = draining
                return msgspec.structs.replace(report, draining=not member.open)
        raise EngineUnknown

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

    def _open(self) -> list[Member]:
        """Return those of them that may be given anything new."""
        return [member for member in self._usable() if member.open]

    # ---------------------------------------------------------------------------------------------------------- engine

    def generate(self, work: EngineWork, arrivals: Arrivals | None = None) -> AsyncGenerator[EngineEvent, None]:
        """See the port. A process without a place is passed over while another may have one."""
        return self._generate(work, arrivals)

    async def _generate(self, work: EngineWork, arrivals: Arrivals | None) -> AsyncGenerator[EngineEvent, None]:
        links = chain(work, self.info.picture_token_id) if len(self._members) > 1 else ()
        full: list[Member] = []
        while True:
            able = [member for member in self._open() if member not in full]
            member = self._choose(able, len(work.token_ids), links)
            member.memory.note(links)
            try:
                async with aclosing(self._ask(member, work, arrivals)) as events:
                    async for event in events:
                        yield event
                return
            except QueueFull:  # raised before the first event only
                full.append(member)
                if all(other in full for other in self._open()):
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
        return able[self._picked(candidates, demand, self._answered)]

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
        return self._open()

    def _encoder(self, content: str, rows: float) -> Member:
        able = {member.number: member for member in self._encoders()}
        if content and able:
            return able[owner(content, {number: one.encoding.amount for number, one in able.items()}, rows)]
        self._encoded += 1
        places = list(able.values())
        return places[self._picked([member.candidate(member.encoding) for member in places], rows, self._encoded)]

    def _picked(self, candidates: Sequence[Candidate], demand: float, turn: int) -> int:
        """Raises EngineUnavailable where there are none."""
        chosen = pick(candidates, demand, bound=AFFINITY_BOUND, turn=turn) if candidates else None
        if chosen is None:
            held_back = [member for member in self._usable() if member.held_back]
            public = "The language model is taken out of use for a while. Try again later." if held_back else None
            raise EngineUnavailable(public, detail=f"no engine process is ready; {len(held_back)} are drained")
        return chosen
