"""The admin API, for API keys with ``admin: true`` only: reload the settings, see which rules hold, and :mod:`.admin_caches`."""

from __future__ import annotations

from typing import Final

from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation
from foveate.api.admin_aliases import AliasRoutes
from foveate.api.admin_caches import CacheRoutes
from foveate.api.admin_canary import CanaryRoutes
from foveate.api.admin_cost import CostRoutes
from foveate.api.admin_engines import EngineRoutes
from foveate.api.admin_slo import SloRoutes
from foveate.api.admin_topology import TopologyRoutes
from foveate.api.admin_upstreams import UpstreamRoutes
from foveate.api.callers import caller_of
from foveate.api.routing import Row, json_reply
from foveate.core.budget import ANYONE
from foveate.core.errors import NotPermitted
from foveate.journey.port import Reloaded, RulesInForce, Service

_NO_KEYS: Final = (
    "This server has no API keys, so nobody may use its admin API. Configure a key with admin: true (auth.keys_file, "
    "foveate keys new --admin), or send the server SIGHUP to reload."
)
_NO_ADMIN: Final = "This API key may not use the admin API: its entry has no admin: true."


class AdminRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._caches = CacheRoutes(service, self._check)
        self._aliases = AliasRoutes(service, self._check)
        self._cost = CostRoutes(service, self._check)
        self._slo = SloRoutes(service, self._check)
        self._canary = CanaryRoutes(service, self._check)
        self._topology = TopologyRoutes(service, self._check)
        self._upstreams = UpstreamRoutes(service, self._check)
        self._engines = EngineRoutes(service, self._check)

    async def reload(self, request: Request) -> Response:
        """Read all settings and the keys file again; tiers, keys and the URL policy change at once.

        Settings that cannot be used are a 422 that says why, and the old ones stay.
        """
        self._check(request)
        return json_reply(await self._service.reload())

    async def rules(self, request: Request) -> Response:
        """Tell which tiers, keys (how many, never which) and URL policy hold, and since when."""
        self._check(request)
        return json_reply(self._service.rules())

    def table(self) -> list[Row]:
        """Return the routes: method, path, handler, options."""
        return [
            ("POST", "/admin/reload", self.reload, documentation.reading(Reloaded, failing=(422,))),
            ("GET", "/admin/rules", self.rules, documentation.reading(RulesInForce)),
            *self._caches.table(),
            *self._aliases.table(),
            *self._cost.table(),
            *self._slo.table(),
            *self._canary.table(),
            *self._topology.table(),
            *self._upstreams.table(),
            *self._engines.table(),
        ]

    def _check(self, request: Request) -> None:
        caller = caller_of(self._service, request.scope["headers"])
        if not caller.admin:
            raise NotPermitted(_NO_KEYS if caller.tenant == ANYONE else _NO_ADMIN)
