"""The admin API: reload the settings, and see which rules hold. For API keys with ``admin: true`` only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation
from foveate.api.callers import caller_of
from foveate.core.budget import ANYONE
from foveate.core.errors import NotPermitted
from foveate.journey.port import Reloaded, RulesInForce, Service

_NO_KEYS: Final = (
    "This server has no API keys, so nobody may use its admin API. Configure a key with admin: true (auth.keys_file, "
    "foveate keys new --admin), or send the server SIGHUP to reload."
)
_NO_ADMIN: Final = "This API key may not use the admin API: its entry has no admin: true."

Handler = Callable[[Request], Awaitable[Response]]


class AdminRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def reload(self, request: Request) -> Response:
        """Read all settings and the keys file again; tiers, keys and the URL policy change at once.

        Settings that cannot be used are a 422 that says why, and the old ones stay.
        """
        self._check(request)
        return _json(await self._service.reload())

    async def rules(self, request: Request) -> Response:
        """Tell which tiers, keys (how many, never which) and URL policy hold, and since when."""
        self._check(request)
        return _json(self._service.rules())

    def table(self) -> list[tuple[str, str, Handler, dict[str, Any]]]:
        """Return the routes: method, path, handler, options."""
        return [
            ("POST", "/admin/reload", self.reload, documentation.reading(Reloaded, failing=(422,))),
            ("GET", "/admin/rules", self.rules, documentation.reading(RulesInForce)),
        ]

    def _check(self, request: Request) -> None:
        headers = dict(request.scope["headers"])
        caller = caller_of(self._service, lambda name: headers.get(name, b""))
        if not caller.admin:
            raise NotPermitted(_NO_KEYS if caller.tenant == ANYONE else _NO_ADMIN)


def _json(reply: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(reply), 200, {"cache-control": "no-store"}, "application/json")
