"""What may be asked of an engine whose processes' roles can be changed while it serves."""

from __future__ import annotations

from typing import Protocol

from foveate.engines.port import Role
from foveate.observe.records import Topology


class Roles(Protocol):
    """An engine whose processes' roles can be changed while it serves."""

    @property
    def topology(self) -> Topology:
        """The one that its processes are there for."""
        ...

    @property
    def encodes(self) -> bool:
        """Whether any of its processes has a vision tower."""
        ...

    def count(self, role: Role) -> int:
        """Return how many processes have this role."""
        ...

    async def change(self, topology: Topology, *, prefill: int | None = None, decode: int | None = None) -> None:
        """Have the processes of a topology; with ``e-p-d`` None is as many as there are, or as were configured.

        Returns when requests go by the new roles; no request fails by it. Raises StartupError when processes cannot start; all is then as
        before.
        """
        ...
