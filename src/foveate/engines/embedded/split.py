"""Prefill and token decode in processes of their own (P/D): one prefills a prompt into the arena, another draws its tokens.

Which process does what is decided here, not by the processes: each can do both. So roles change while they serve
(:mod:`foveate.engines.embedded.roles`), a process may answer whole requests, and while no process of a role is there, one of the other
role does. A prompt that has no room between two processes, however empty that is, is answered whole too.

A process that dies costs its requests nothing before their first token: the prompt is prefilled again elsewhere, and one that was prefilled
lies in the arena, for the next process to go on with. A request that two processes ended with is given to no third.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from foveate.core.clock import now
from foveate.core.errors import EngineDied, EngineUnavailable, QueueFull
from foveate.core.memory import Slot
from foveate.engines.arrivals import Arrivals
from foveate.engines.deaths import Deaths
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.kv_room import KvRoom, Room
from foveate.engines.embedded.messages import Prefilled, TokenDecode
from foveate.engines.embedded.places import Supply
from foveate.engines.embedded.roles import RoleFleet
from foveate.engines.member import Member
from foveate.engines.port import EngineEvent, EngineWork, Role
from foveate.engines.prompt_chain import chain
from foveate.observe.load import Load
from foveate.observe.records import Topology

END_SECONDS_MAX: Final = 300.0
"""As ``server.request_seconds_max``."""


class _Place:
    """Room for one prompt's K/V, taken when it is asked for: no prompt that waits for a picture keeps others out."""

    def __init__(self, rooms: KvRoom, size: int, deadline: float) -> None:
        self._rooms = rooms
        self._size = size
        self._deadline = deadline
        self._room: Room | None = None

    @property
    def room(self) -> Room:
        """What was taken."""
        assert self._room is not None, "nobody asked for it"
        return self._room

    async def slot(self) -> Slot:
        """Return the room's slot. Raises what :meth:`KvRoom.take` does."""
        if self._room is None:
            self._room = await self._rooms.take(self._size, deadline=self._deadline)
        return self._room.slot

    def release(self) -> None:
        """Give back what was taken."""
        if self._room is not None:
            self._room.release()


class SplitFleet(RoleFleet):
    """Implements :class:`foveate.engines.port.Engine` over processes with roles."""

    def __init__(
        self,
        supply: Supply,
        room: KvRoom,
        *,
        topology: Topology = "agg",
        prefill: int | None = None,
        decode: int | None = None,
        end_seconds_max: float = END_SECONDS_MAX,
        load: Load | None = None,
    ) -> None:
        """``room`` is where prompts lie in between. ``load`` is told what waits and what went over; the rest as :class:`RoleFleet`'s."""
        super().__init__(supply, topology, prefill=prefill, decode=decode, end_seconds_max=end_seconds_max)
        self.room = room
        self._load = load or Load()

    def _encoders(self) -> list[Member]:
        """Those that have a vision tower; where none stays that has, one that is leaving."""
        able = [
            member for member in self._usable() if isinstance(member.engine, EmbeddedEngine) and member.engine.encodes
        ]
        return [member for member in able if member.open] or [member for member in able if member.leaving]

    async def _generate(self, work: EngineWork, arrivals: Arrivals | None) -> AsyncGenerator[EngineEvent, None]:
        asked = now()
        info = self.info
        size = info.kv_bytes_per_token * len(work.token_ids) + info.kv_bytes_fixed
        if not self._of("p") or not self._of("d") or size > self.room.bytes_max:
            async with aclosing(super()._generate(work, arrivals)) as events:
                async for event in events:
                    yield event
            return
        arrivals = arrivals or Arrivals(set())
        place, deaths = _Place(self.room, size, work.deadline), Deaths(work)
        try:
            self._load.llm_waiting += 1
            try:
                prefilled = await self._prefill(work, place, asked, arrivals, deaths=deaths)
            finally:
                self._load.llm_waiting -= 1
            self._load.handed_on(prefilled.kv.used)
            message = TokenDecode(arrivals.filled(work), asked, prefilled)
            async with aclosing(self._go_on(message, place.room, deaths)) as events:
                async for event in events:
                    yield event
        except EngineUnavailable as error:
            raise deaths.told(error) from error
        finally:
            place.release()

    def _of(self, role: Role) -> list[Member]:
        return [member for member in self._open() if member.role == role]

    def _able(self, role: Role, passed_over: Sequence[Member]) -> list[Member]:
        """Return who can do a part of a request: those of the role, and those that answer whole ones, as roles may have changed since."""
        return [member for member in self._open() if member.role in (role, "pd") and member not in passed_over]

    async def _prefill(
        self, work: EngineWork, place: _Place, asked: float, arrivals: Arrivals, *, deaths: Deaths
    ) -> Prefilled:
        """Have a process prefill the prompt; another one when it dies or has no place. Raises what the last one did."""
        links = chain(work, self.info.picture_token_id)
        tried: list[Member] = []
        weight = float(len(work.token_ids))
        while True:
            if arrivals.complete:
                await place.slot()
            member = self._choose(self._able("p", tried), weight, links)
            member.memory.note(links)
            member.answering.begin(weight)
            try:
                engine = member.engine
                assert isinstance(engine, EmbeddedEngine)
                return await engine.prefill(work, place.slot, submitted_at=asked, arrivals=arrivals)
            except (EngineDied, EngineUnavailable, QueueFull) as error:
                deaths.count(error)
                tried.append(member)
                if not self._able("p", tried):
                    raise
            finally:
                member.answering.end(weight)

    async def _go_on(self, message: TokenDecode, room: Room, deaths: Deaths) -> AsyncGenerator[EngineEvent, None]:
        """Have a process draw the tokens; another one when it dies or has no place before the first. Raises what the last one did."""
        tried: list[Member] = []
        begun = False
        while True:
            member = self._choose(self._able("d", tried), float(len(message.work.token_ids)))
            engine = member.engine
            assert isinstance(engine, EmbeddedEngine)
            member.answering.begin(1.0)
            try:
                async with aclosing(engine.go_on(message, on_free=room.retain().release)) as events:
                    async for event in events:
                        begun = True
                        yield event
                return
            except (EngineDied, EngineUnavailable, QueueFull) as error:
                deaths.count(error)
                tried.append(member)
                if begun or not self._able("d", tried):
                    raise
            finally:
                member.answering.end(1.0)
