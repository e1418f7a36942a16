"""Prefill and token decode in processes of their own (P/D): one prefills a prompt into the arena, another draws its tokens.

Which process does what is decided here, not by the processes: each can do both. So a role can be given to another process while it serves,
and while no process of a role is there, one of the other role answers the whole request.

A process that dies costs its requests nothing before their first token: the prompt is prefilled again elsewhere, and one that was prefilled
lies in the arena, for the next process to go on with.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

from foveate.core.clock import now
from foveate.core.errors import ArenaFull, EngineDied, EngineUnavailable, QueueFull, StartupError
from foveate.core.memory import Slot
from foveate.engines.arrivals import Arrivals
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.kv_room import LIMIT_NAME, KvRoom, Room
from foveate.engines.embedded.messages import Prefilled, TokenDecode
from foveate.engines.fleet import Fleet, Member
from foveate.engines.port import EngineEvent, EngineWork
from foveate.engines.prompt_chain import chain
from foveate.observe.load import Load

Role = Literal["p", "d"]


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


class SplitFleet(Fleet):
    """Implements :class:`foveate.engines.port.Engine` over processes with roles."""

    def __init__(
        self, engines: Sequence[EmbeddedEngine], roles: Sequence[Role], room: KvRoom, load: Load | None = None
    ) -> None:
        """``roles``: one for each engine. ``room`` is where prompts lie in between. ``load`` is told what waits and what went over."""
        super().__init__(engines)
        self._room = room
        self._roles = dict(zip(self._members, roles, strict=True))
        self._load = load or Load()

    async def start(self) -> None:
        """See the port."""
        try:
            self._room.open()
        except ArenaFull as error:
            raise StartupError(
                f"There is no room for K/V between prefill and token decode. Lower {LIMIT_NAME}, or raise limits.arena_bytes_max."
            ) from error
        await super().start()

    async def stop(self, *, seconds_max: float) -> None:
        """See the port."""
        await super().stop(seconds_max=seconds_max)
        self._room.close()

    def _encoders(self) -> list[Member]:
        return [
            member for member in self._usable() if isinstance(member.engine, EmbeddedEngine) and member.engine.encodes
        ]

    async def _generate(self, work: EngineWork, arrivals: Arrivals | None) -> AsyncGenerator[EngineEvent, None]:
        if not self._of("p") or not self._of("d"):
            async with aclosing(super()._generate(work, arrivals)) as events:
                async for event in events:
                    yield event
            return
        asked = now()
        info = self.info
        size = info.kv_bytes_per_token * len(work.token_ids) + info.kv_bytes_fixed
        self._room.check(size)
        arrivals = arrivals or Arrivals(set())
        place = _Place(self._room, size, work.deadline)
        try:
            self._load.llm_waiting += 1
            try:
                prefilled = await self._prefill(work, place, asked, arrivals)
            finally:
                self._load.llm_waiting -= 1
            self._load.handed_on(prefilled.kv.used)
            message = TokenDecode(arrivals.filled(work), asked, prefilled)
            async with aclosing(self._go_on(message, place.room)) as events:
                async for event in events:
                    yield event
        finally:
            place.release()

    def _of(self, role: Role, passed_over: Sequence[Member] = ()) -> list[Member]:
        return [member for member in self._usable() if self._roles[member] == role and member not in passed_over]

    async def _prefill(self, work: EngineWork, place: _Place, asked: float, arrivals: Arrivals) -> Prefilled:
        """Have a process prefill the prompt; another one when it dies or has no place. Raises what the last one did."""
        links = chain(work, self.info.picture_token_id)
        tried: list[Member] = []
        weight = float(len(work.token_ids))
        while True:
            if arrivals.complete:
                await place.slot()
            member = self._choose(self._of("p", tried), weight, links)
            member.memory.note(links)
            member.answering.begin(weight)
            try:
                engine = member.engine
                assert isinstance(engine, EmbeddedEngine)
                return await engine.prefill(work, place.slot, submitted_at=asked, arrivals=arrivals)
            except (EngineDied, EngineUnavailable, QueueFull):
                tried.append(member)
                if not self._of("p", tried):
                    raise
            finally:
                member.answering.end(weight)

    async def _go_on(self, message: TokenDecode, room: Room) -> AsyncGenerator[EngineEvent, None]:
        """Have a process draw the tokens; another one when it dies or has no place before the first. Raises what the last one did."""
        tried: list[Member] = []
        begun = False
        while True:
            member = self._choose(self._of("d", tried), float(len(message.work.token_ids)))
            engine = member.engine
            assert isinstance(engine, EmbeddedEngine)
            member.answering.begin(1.0)
            try:
                async with aclosing(engine.go_on(message, on_free=room.retain().release)) as events:
                    async for event in events:
                        begun = True
                        yield event
                return
            except (EngineDied, EngineUnavailable, QueueFull):
                tried.append(member)
                if begun or not self._of("d", tried):
                    raise
            finally:
                member.answering.end(1.0)
