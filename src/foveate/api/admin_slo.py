"""The admin API of the service-level objectives."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation
from foveate.api.routing import Row, json_reply
from foveate.journey.port import Service
from foveate.observe.slo import SloReport


class SloRoutes:
    """The handler. ``check`` refuses whoever is no admin."""

    def __init__(self, service: Service, check: Callable[[Request], None]) -> None:
        self._service = service
        self._check = check

    async def slo(self, request: Request) -> Response:
        """Tell how many requests met the targets of the settings section `slo` in the last 5 and 30 minutes, hour and 6 hours, how fast
        the error budget is spent, and whether that is an alert. Text and multimodal are never mixed.
        """
        self._check(request)
        return json_reply(self._service.observed().objectives.report())

    def table(self) -> list[Row]:
        """Return the routes: method, path, handler, options."""
        return [("GET", "/admin/slo", self.slo, documentation.reading(SloReport))]
