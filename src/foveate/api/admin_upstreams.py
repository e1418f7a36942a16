"""The admin API of the servers behind this one: how they are, and taking one out before it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation, replies
from foveate.api.routing import Row, json_reply
from foveate.engines.port import RelayReport
from foveate.journey.port import Service

_NAME: Final = documentation.in_path(
    "name", {"type": "string", "minLength": 1}, "An upstream's name, or host and port."
)


class UpstreamRoutes:
    """The handlers. ``check`` refuses whoever is no admin."""

    def __init__(self, service: Service, check: Callable[[Request], None]) -> None:
        self._service = service
        self._check = check

    async def upstreams(self, request: Request) -> Response:
        """Tell of every upstream whether it is up, what it has to do, and how its requests ended."""
        self._check(request)
        return json_reply(replies.Upstreams(list(self._service.upstreams())))

    async def drain_upstream(self, request: Request) -> Response:
        """Send an upstream nothing new; what is under way there goes on. `in_flight` 0 tells that it can be stopped."""
        self._check(request)
        return json_reply(self._service.drain_upstream(request.path_params["name"], draining=True))

    async def resume_upstream(self, request: Request) -> Response:
        """Let an upstream have requests again."""
        self._check(request)
        return json_reply(self._service.drain_upstream(request.path_params["name"], draining=False))

    def table(self) -> list[Row]:
        """Return the routes: method, path, handler, options."""
        named = documentation.reading(RelayReport, places=(_NAME,), failing=(404,))
        return [
            ("GET", "/admin/upstreams", self.upstreams, documentation.reading(replies.Upstreams)),
            ("POST", "/admin/upstreams/{name}/drain", self.drain_upstream, named),
            ("POST", "/admin/upstreams/{name}/resume", self.resume_upstream, named),
        ]
