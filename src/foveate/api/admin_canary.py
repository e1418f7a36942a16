"""The admin API of a roll-out: a new version of the model beside the one that serves, its share, and how it ends."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation
from foveate.api.canary_bodies import CanaryShare, CanaryStart
from foveate.api.routing import Row, json_reply
from foveate.api.small_body import small_body
from foveate.journey.canary_port import CanaryOperator, CanaryReport
from foveate.journey.port import Service


class CanaryRoutes:
    """The handlers. ``check`` refuses whoever is no admin."""

    def __init__(self, service: Service, check: Callable[[Request], None]) -> None:
        self._service = service
        self._check = check

    async def canary(self, request: Request) -> Response:
        """Tell of the new version on trial and of the one that serves: requests, errors, times, and how far their embeddings differ.

        Without one, how the last one ended.
        """
        return json_reply(self._operator(request).report())

    async def start_canary(self, request: Request) -> Response:
        """Load a new version of the model beside the one that serves, and give it a share of the contents.

        Answers when it is on trial, which takes as long as starting a server; it is loaded whether or not the client waits. A version that
        cannot be loaded leaves the one that serves untouched.
        """
        operator = self._operator(request)
        asked = await small_body(request, CanaryStart)
        return json_reply(await operator.start(asked.model, share=asked.share, warm=asked.warm, encoder=asked.encoder))

    async def share_canary(self, request: Request) -> Response:
        """Change the share. A larger one moves contents from the old version to the new one and none back."""
        operator = self._operator(request)
        return json_reply(operator.set_share((await small_body(request, CanaryShare)).share))

    async def promote_canary(self, request: Request) -> Response:
        """Let the new version answer all requests that begin from now on; those under way end on the version they began with.

        It lasts until the server restarts: change `model.path` too.
        """
        return json_reply(self._operator(request).promote())

    async def rollback_canary(self, request: Request) -> Response:
        """Let the old version answer all requests that begin from now on. A new one that still loads is given up."""
        return json_reply(await self._operator(request).rollback())

    def table(self) -> list[Row]:
        """Return the routes: method, path, handler, options."""
        of, report = "/admin/canary", CanaryReport
        changing = documentation.changing
        return [
            ("GET", of, self.canary, documentation.reading(report)),
            ("POST", of, self.start_canary, changing(report, CanaryStart, failing=(409, 413, 422, 504))),
            ("POST", f"{of}/share", self.share_canary, changing(report, CanaryShare, failing=(404, 413, 504))),
            ("POST", f"{of}/promote", self.promote_canary, documentation.reading(report, failing=(404,))),
            ("POST", f"{of}/rollback", self.rollback_canary, documentation.reading(report, failing=(404,))),
        ]

    def _operator(self, request: Request) -> CanaryOperator:
        self._check(request)
        return self._service.canary()
