"""The admin API of the topology: where the vision encoder and the language model run, and changing that while requests run."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation
from foveate.api.routing import Row, json_reply
from foveate.api.small_body import small_body
from foveate.api.topology_bodies import TopologySet
from foveate.journey.port import Service
from foveate.journey.topology_port import TopologyReport


class TopologyRoutes:
    """The handlers. ``check`` refuses whoever is no admin."""

    def __init__(self, service: Service, check: Callable[[Request], None]) -> None:
        self._service = service
        self._check = check

    async def topology(self, request: Request) -> Response:
        """Tell how many encode workers and engine processes there are, and of each how it is and what it has to do."""
        self._check(request)
        return json_reply(self._service.topology().report())

    async def set_topology(self, request: Request) -> Response:
        """Have so many encode workers from now on, none with `agg`, and with `e-p-d` so many prefill and token-decode workers.

        No request fails by it: what is under way ends where it is. Answers when new processes are ready, which takes as long as their
        weights take to load, and requests go by them; encode workers that go have finished then, engine processes may be `leaving` for as
        long as what they have begun takes. It lasts until the server restarts: change the settings of the same names too.
        """
        self._check(request)
        asked, topology = await small_body(request, TopologySet), self._service.topology()
        return json_reply(await topology.set(asked.kind, asked.encoders, prefill=asked.prefill, decode=asked.decode))

    def table(self) -> list[Row]:
        """Return the routes: method, path, handler, options."""
        changing = documentation.changing(TopologyReport, TopologySet, failing=(409, 413, 504))
        return [
            ("GET", "/admin/topology", self.topology, documentation.reading(TopologyReport)),
            ("PUT", "/admin/topology", self.set_topology, changing),
        ]
