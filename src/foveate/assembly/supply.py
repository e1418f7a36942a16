"""From settings to embedded engines' processes: how many of each role, and where each runs; what all versions' engines have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from foveate.assembly.bounds import apart_bytes
from foveate.assembly.encoders import dealt, threads_each
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.kv_room import KvRoom
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.engines.embedded.places import Place
from foveate.engines.port import Role
from foveate.models.memory import check_memory
from foveate.observe.load import Load
from foveate.observe.logging import get_logger
from foveate.observe.records import Topology
from foveate.runtime.port import Runtime
from foveate.settings import Settings

log = get_logger(__name__)

NEEDS: dict[Role, str] = {"pd": "engine", "p": "prefill", "d": "decode"}
"""By which of the settings ``runtime.*_needs`` a process of a role is placed on a cluster."""


class Shared:
    """What all versions share: the runtime, who is told of load and of what is loading, the numbers in the names of their engines, and the
    room for prompts between two of those, where there is any.
    """

    def __init__(self, settings: Settings, runtime: Runtime, load: Load, say: Callable[[str], None]) -> None:
        self.runtime = runtime
        self.load = load
        self.say = say
        self.room = KvRoom(runtime.arena.apart) if apart_bytes(settings) else None
        self._taken: set[int] = set()

    def take_number(self) -> int:
        """Return the lowest number that no process has."""
        number = next(number for number in range(len(self._taken) + 1) if number not in self._taken)
        self._taken.add(number)
        return number

    def give_back(self, number: int) -> None:
        """The process of this number has ended."""
        self._taken.discard(number)


class EmbeddedSupply:
    """Implements :class:`foveate.engines.embedded.places.Supply`."""

    def __init__(self, settings: Settings, config: EmbeddedConfig, shared: Shared) -> None:
        """``config`` is that of every process, but for where it runs and whether it has a vision tower."""
        self._settings = settings
        self._config = config
        self._shared = shared

    def places(self, topology: Topology, prefill: int | None, decode: int | None) -> list[Place]:
        """See the port. Threads and cores are dealt out among as many as are configured: more of them change nothing for the rest."""
        settings, chosen = self._settings, self._settings.topology
        config = msgspec.structs.replace(self._config, encoder=topology == "agg" or chosen.fallback == "local")
        if topology != "e-p-d":
            count = settings.engine.count
            threads = settings.engine.threads or threads_each(count, settings.engine.cpus)
            cpus = dealt(settings.engine.cpus, count)
            return [self._place("pd", config, threads, turn(cpus, at)) for at in range(count)]
        first_each = threads_each(chosen.prefill, chosen.prefill_cpus, others=chosen.decode)
        second_each = threads_each(chosen.decode, chosen.decode_cpus, others=chosen.prefill)
        # Where the engine's processes stand in for encode workers, those that prefill do: the others need no vision tower.
        first = msgspec.structs.replace(config, device=chosen.prefill_device or config.device)
        second = msgspec.structs.replace(config, device=chosen.decode_device or config.device, encoder=False)
        first_cpus, second_cpus = dealt(chosen.prefill_cpus, chosen.prefill), dealt(chosen.decode_cpus, chosen.decode)
        return [
            *(
                self._place("p", first, chosen.prefill_threads or first_each, turn(first_cpus, at))
                for at in range(prefill or chosen.prefill)
            ),
            *(
                self._place("d", second, chosen.decode_threads or second_each, turn(second_cpus, at))
                for at in range(decode or chosen.decode)
            ),
        ]

    def _place(self, role: Role, config: EmbeddedConfig, threads: int, cpus: tuple[int, ...]) -> Place:
        # A node of a cluster may have what one role needs and not what another does; on one machine there is nothing to place.
        needs = NEEDS[role] if self._settings.runtime.kind == "ray" else ""
        return Place(role, config, threads, cpus, needs)

    async def check_room(self, places: Sequence[Place]) -> None:
        """See the port. Of a device's memory nothing is known here, nor of another machine's."""
        copies = sum(place.config.device == "cpu" for place in places)
        if copies and self._settings.runtime.kind == "local":
            config = self._config
            await asyncio.to_thread(check_memory, config.model_dir, config.model, dtype=config.dtype, copies=copies)

    def make(self, place: Place) -> EmbeddedEngine:
        """See the port."""
        settings, shared = self._settings, self._shared
        number = shared.take_number()
        return EmbeddedEngine(
            shared.runtime,
            place.config,
            load=shared.load,
            threads=place.threads,
            cpus=place.cpus,
            needs=place.needs,
            index=number,
            start_seconds_max=settings.server.start_seconds_max,
            hang_seconds=settings.engine.hang_seconds,
            on_progress=lambda text: shared.say(f"engine {number}: {text}"),
            on_restart=lambda: log.warning("engine %d is back", number),
        )

    def gone(self, engine: EmbeddedEngine) -> None:
        """See the port."""
        self._shared.give_back(engine.index)


def turn(dealt_cpus: Sequence[tuple[int, ...]], at: int) -> tuple[int, ...]:
    """Return the cores of the process at this place, of those that were dealt out; none where there are none."""
    return dealt_cpus[at % len(dealt_cpus)] if dealt_cpus else ()
