"""The admin API of the engine's processes: how they are, and giving one nothing new, as before its machine or device is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation, replies
from foveate.api.routing import Row, json_reply
from foveate.engines.port import EngineReport
from foveate.journey.port import Service

_NAME: Final = documentation.in_path("name", {"type": "string", "minLength": 1}, "An engine's place, from 0.")


class EngineRoutes:
    """The handlers. ``check`` refuses whoever is no admin."""

    def __init__(self, service: Service, check: Callable[[Request], None]) -> None:
        self._service = service
        self._check = check

    async def engines(self, request: Request) -> Response:
        """Tell of every engine process of the version that serves what it does, how it is, and what it has to do."""
        self._check(request)
        return json_reply(replies.Engines(list(self._service.engines())))

    async def drain_engine(self, request: Request) -> Response:
        """Give an engine process nothing new; what is under way there goes on. `in_flight` 0 tells when it has finished.

        With none left that is not drained, requests are refused and `/ready` is 503.
        """
        self._check(request)
        return json_reply(self._service.drain_engine(request.path_params["name"], draining=True))

    async def resume_engine(self, request: Request) -> Response:
        """Let an engine process have requests again."""
        self._check(request)
        return json_reply(self._service.drain_engine(request.path_params["name"], draining=False))

    def table(self) -> list[Row]:
        """Return the routes: method, path, handler, options."""
        named = documentation.reading(EngineReport, places=(_NAME,), failing=(404,))
        return [
            ("GET", "/admin/engines", self.engines, documentation.reading(replies.Engines)),
            ("POST", "/admin/engines/{name}/drain", self.drain_engine, named),
            ("POST", "/admin/engines/{name}/resume", self.resume_engine, named),
        ]
