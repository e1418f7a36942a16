"""The page's routes: the page and its files for anyone, its data for whoever may use the admin API.

A server without API keys asks nobody for one, here as everywhere. The page's files hold nothing about the server; the key that the page
asks for goes into the header of its own requests and nowhere else.
"""

from __future__ import annotations

import asyncio
from functools import partial
from importlib import resources
from typing import Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from foveate.api.callers import caller_of
from foveate.api.routing import Handler, json_reply
from foveate.core.budget import ANYONE
from foveate.core.errors import NotPermitted, RouteNotFound
from foveate.dashboard.report import read_devices, report
from foveate.journey.port import Service

_TYPES: Final = {
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "charts.js": "text/javascript",
    "format.js": "text/javascript",
    "waterfall.js": "text/javascript",
    "vendor/uPlot.iife.min.js": "text/javascript",
    "vendor/uPlot.min.css": "text/css",
    "vendor/uPlot.LICENSE": "text/plain",
}
_HEADERS: Final = {
    # No inline script or style, nothing from elsewhere, in no one's frame. The icon is an empty data: URL, so that no browser asks for one.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class DashboardRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        static = resources.files("foveate.dashboard") / "static"
        self._page = (static / "index.html").read_bytes()
        self._files = {name: (static / name).read_bytes() for name in _TYPES}

    async def dashboard(self, request: Request) -> Response:
        """Return the page."""
        return Response(self._page, headers=_HEADERS, media_type="text/html")

    async def dashboard_file(self, request: Request) -> Response:
        """Return one of the page's files. Raises RouteNotFound."""
        name = request.path_params["name"]
        if name not in self._files:
            raise RouteNotFound
        return Response(self._files[name], headers=_HEADERS, media_type=_TYPES[name])

    async def dashboard_data(self, request: Request) -> Response:
        """Return everything that the page shows. Its shape is the page's and may change. Raises NotPermitted, Unauthenticated."""
        caller = caller_of(self._service, request.scope["headers"])
        if not caller.admin and caller.tenant != ANYONE:
            raise NotPermitted("This API key may not see the dashboard: its entry has no admin: true.")
        devices = await asyncio.to_thread(read_devices, self._service.observed().metrics)
        return json_reply(report(self._service, devices))

    def table(self) -> list[tuple[str, Handler]]:
        """Return path and handler of each route; all are GET."""
        return [
            ("/dashboard", self.dashboard),
            ("/dashboard/data", self.dashboard_data),
            ("/dashboard/files/{name:path}", self.dashboard_file),
        ]


def install(app: FastAPI, service: Service) -> None:
    """Add the page to an application. It is no part of the API that the OpenAPI document describes."""
    for path, handler in DashboardRoutes(service).table():
        # Wrapped for the reason that create_app tells.
        app.add_api_route(
            path,
            partial(handler),
            methods=["GET"],
            name=handler.__name__,
            response_class=Response,
            include_in_schema=False,
        )
