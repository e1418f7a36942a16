"""A further version of the model is loaded in the topology of the one that serves."""

from __future__ import annotations

from typing import Any, cast

from foveate.assembly.version import as_now
from foveate.engines.port import Role
from foveate.journey.serving import Serving
from foveate.observe.records import Topology
from foveate.settings import load


class PlayedRoles:
    """What an engine says of its processes."""

    encodes = True

    def __init__(self, topology: Topology, prefill: int = 0, decode: int = 0) -> None:
        self.topology: Topology = topology
        self._numbers: dict[Role, int] = {"p": prefill, "d": decode}

    def count(self, role: Role) -> int:
        return self._numbers.get(role, 0)

    async def change(self, topology: Topology, *, prefill: int | None = None, decode: int | None = None) -> None:
        raise AssertionError("nobody changes anything here")


def serving(roles: PlayedRoles | None) -> Serving:
    nothing: Any = None
    stop = cast(Any, None)
    return Serving("m", nothing, nothing, nothing, nothing, nothing, restarts=lambda: 0, stop=stop, roles=roles)


def test_a_version_is_loaded_as_the_one_that_serves_is_now() -> None:
    settings = load({"topology.kind": "e-pd", "topology.prefill": "3"})
    split = as_now(settings, serving(PlayedRoles("e-p-d", prefill=1, decode=2))).topology
    assert (split.kind, split.prefill, split.decode) == ("e-p-d", 1, 2)
    whole = as_now(settings, serving(PlayedRoles("agg"))).topology
    assert (whole.kind, whole.prefill) == ("agg", 3), "numbers of roles that are not there stay as configured"
    assert as_now(settings, serving(None)) is settings
    assert settings.topology.kind == "e-pd"
