"""Where the processes of an engine with roles come from: which there are to be, what each holds, and on what it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.engines.port import Role
from foveate.observe.records import Topology


class Place(msgspec.Struct, frozen=True):
    """One process that there is to be. ``threads``, ``cpus`` and ``needs`` as in :class:`foveate.runtime.port.WorkerSpec`."""

    role: Role
    config: EmbeddedConfig
    threads: int
    cpus: tuple[int, ...] = ()
    needs: str = ""

    def fits(self, other: Place) -> bool:
        """Whether the process of one place may be given the other: they differ in nothing but the role, which the gateway gives."""
        return msgspec.structs.replace(self, role=other.role) == other


class Supply(Protocol):
    """What the processes are made by."""

    def places(self, topology: Topology, prefill: int | None, decode: int | None) -> list[Place]:
        """Return the processes of a topology: with ``e-p-d`` so many prefill and token-decode workers, None: as many as were configured."""
        ...

    async def check_room(self, places: Sequence[Place]) -> None:
        """Raise StartupError where this machine has no memory for processes in these places beside those that there are."""
        ...

    def make(self, place: Place) -> EmbeddedEngine:
        """Return a process, not started."""
        ...

    def gone(self, engine: EmbeddedEngine) -> None:
        """A process has ended for good."""
        ...
