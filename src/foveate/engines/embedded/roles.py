"""Engine processes whose roles change while they serve: some are given another role, some are started, some finish what they have and end.

A role is the gateway's choice, so a process keeps its memory and its caches with another one; it is replaced only where the settings give
the new role another device, other threads or cores, or a vision tower. New processes are ready before any is given up, and all roles change
in one step between two requests: what is under way ends where it is, what comes goes by the new roles.

Does not cover: what a request does with the roles (:mod:`foveate.engines.embedded.split`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from foveate.core.errors import StartupError
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.places import Place, Supply
from foveate.engines.fleet import Fleet
from foveate.engines.member import Member
from foveate.engines.port import EngineReport, Role
from foveate.observe.records import Topology

_LOG = logging.getLogger("foveate.engine")

LINGER_SECONDS: Final = 0.5
"""How long a process stays although it has nothing to do: what was decided for it in the last instant still finds it."""
STOP_SECONDS: Final = 2.0
"""How long a process that has nothing to do may take to end."""


class RoleFleet(Fleet):
    """A fleet of embedded engines that can be changed. Lives on the event loop."""

    def __init__(
        self, supply: Supply, topology: Topology, *, prefill: int | None, decode: int | None, end_seconds_max: float
    ) -> None:
        """``end_seconds_max``: how long a process that goes may take for what it has begun."""
        places = supply.places(topology, prefill, decode)
        super().__init__([supply.make(place) for place in places])
        self.topology = topology
        self._supply = supply
        self._end_seconds_max = end_seconds_max
        self._places = dict(zip(self._members, places, strict=True))
        for member, place in self._places.items():
            member.role = place.role
        self._leaving: dict[Member, asyncio.Task[None]] = {}
        self._coming: list[Member] = []
        self._changing = asyncio.Lock()
        self._stopped = False
        self._past_restarts: Counter[str] = Counter()

    # ----------------------------------------------------------------------------------------------------------- what there is

    @property
    def encodes(self) -> bool:
        """Whether any process that stays has a vision tower."""
        return any(place.config.encoder for member, place in self._places.items() if not member.leaving)

    def count(self, role: Role) -> int:
        """Return how many processes have this role."""
        return sum(member.role == role and not member.leaving for member in self._members)

    @property
    def restarts(self) -> int:
        """How many processes were replaced because they died, those that are gone included."""
        return super().restarts + self._past_restarts.total()

    def report(self) -> tuple[EngineReport, ...]:
        """See the port."""
        return tuple(
            msgspec.structs.replace(one, restarts=one.restarts + self._past_restarts[one.name])
            for one in super().report()
        )

    # ---------------------------------------------------------------------------------------------------------------- changing

    async def change(self, topology: Topology, *, prefill: int | None = None, decode: int | None = None) -> None:
        """Have the processes of a topology; with ``e-p-d`` None is as many as there are, or as were configured.

        Returns when requests go by the new roles; processes that go may still finish what they have. Raises StartupError when new ones
        cannot start; all is then as before.
        """
        async with self._changing:
            places = self._supply.places(
                topology, prefill or self.count("p") or None, decode or self.count("d") or None
            )
            kept, missing = self._kept(places)
            coming = await self._started(missing)
            self._take_over(kept, coming)
            self.topology = topology

    async def stop(self, *, seconds_max: float) -> None:
        """See the port."""
        self._stopped = True
        for member, task in self._leaving.items():
            if member in self._members:  # else it is being ended
                task.cancel()
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        # Whoever is starting these sees to the rest.
        await asyncio.gather(*(member.engine.stop(seconds_max=seconds_max) for member in self._coming))
        await super().stop(seconds_max=seconds_max)
        for member in self._members:
            self._forget(member)

    def _kept(self, places: Sequence[Place]) -> tuple[dict[Member, Place], list[Place]]:
        """Return which process gets which place, and the places that need a new one.

        A process keeps its role where it can; one that was about to leave stays where no other fits.
        """
        kept: dict[Member, Place] = {}
        missing = list(places)
        best = sorted(self._members, key=lambda member: (not member.engine.ready, member.held_back, member.number))
        for same, leaving in ((True, False), (False, False), (True, True), (False, True)):
            for place in tuple(missing):
                for member in best:
                    if member in kept or member.leaving != leaving or (member.role == place.role) != same:
                        continue
                    if self._places[member].fits(place):
                        kept[member] = place
                        missing.remove(place)
                        break
        return kept, missing

    async def _started(self, places: Sequence[Place]) -> list[Member]:
        """Start processes side by side, and return them when all are ready. Raises StartupError, with none left running."""
        if not places:
            return []
        await self._supply.check_room(places)
        if self._stopped:
            raise StartupError("The engine has been stopped.")
        taken = {member.number for member in self._members}
        numbers = (number for number in itertools.count() if number not in taken)
        coming = [Member(self._supply.make(place), next(numbers), place.role) for place in places]
        self._places.update(zip(coming, places, strict=True))
        self._coming = coming
        well = False
        try:
            async with asyncio.TaskGroup() as tasks:
                for member in coming:
                    tasks.create_task(member.engine.start())
            if self._stopped:
                raise StartupError("The engine has been stopped.")
            if any(member.engine.info != self.info for member in coming):
                raise StartupError("The model's files are not those that the server started with. Start it again.")
            well = True
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._coming = []
            if not well:
                await asyncio.gather(*(self._end(member) for member in coming))
        return coming

    def _take_over(self, kept: Mapping[Member, Place], coming: Sequence[Member]) -> None:
        """Change all roles. Nothing waits here, so that no request sees half of it."""
        for member, place in kept.items():
            member.role = place.role
            self._places[member] = place
            if member.leaving:
                member.leaving = False
                self._leaving.pop(member).cancel()
        for member in self._members:
            if member not in kept and not member.leaving:
                member.leaving = True
                self._leaving[member] = asyncio.get_running_loop().create_task(
                    self._leave(member), name=f"engine {member.number} leaves"
                )
        # A new list: metrics are read by another thread.
        self._members = sorted((*self._members, *coming), key=lambda member: member.number)

    async def _leave(self, member: Member) -> None:
        """End a process when it has finished what it has."""
        await asyncio.sleep(LINGER_SECONDS)
        try:
            async with asyncio.timeout(self._end_seconds_max):
                await member.idle()
        except TimeoutError:
            _LOG.warning("an engine is ended although requests are still under way there: %d", member.answering.pieces)
        async with self._changing:  # a change that is under way may want it back, which cancels this
            self._members = [other for other in self._members if other is not member]
            self._past_restarts[str(member.number)] += member.engine.restarts
        try:
            await self._end(member)
        except OSError as error:
            _LOG.error("an engine that has left could not be ended: %s", error)
        finally:
            self._leaving.pop(member, None)

    async def _end(self, member: Member) -> None:
        try:
            await member.engine.stop(seconds_max=STOP_SECONDS)
        finally:
            self._forget(member)

    def _forget(self, member: Member) -> None:
        engine = member.engine
        assert isinstance(engine, EmbeddedEngine)
        self._places.pop(member, None)
        self._supply.gone(engine)
