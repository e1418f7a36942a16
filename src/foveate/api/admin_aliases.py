"""The admin API of clients' own names for media: which are bound, and how to free one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation
from foveate.api.admin_caches import LIMIT, limit_of
from foveate.api.routing import Row, json_reply
from foveate.core.errors import InvalidParameter
from foveate.journey.cache_port import Aliases, Forgotten
from foveate.journey.port import Service

_TENANT: Final = {"type": "string", "minLength": 1}
_OF: Final = documentation.in_query(
    "tenant", _TENANT, "Whose names; `anyone` where no keys are configured.", required=True
)
_WHOSE: Final = documentation.in_path("tenant", _TENANT, "Whose name.")
_UUID: Final = documentation.in_path("uuid", {"type": "string", "minLength": 1}, "The name; it may have slashes.")


class AliasRoutes:
    """The handlers. ``check`` refuses whoever is no admin."""

    def __init__(self, service: Service, check: Callable[[Request], None]) -> None:
        self._service = service
        self._check = check

    async def aliases(self, request: Request) -> Response:
        """List a tenant's names for media (`uuid`), those used last first."""
        self._check(request)
        tenant = request.query_params.get("tenant", "")
        if not tenant:
            raise InvalidParameter("The tenant whose names to list is missing.", param="tenant")
        return json_reply(self._service.caches().aliases(tenant, limit_of(request)))

    async def forget_alias(self, request: Request) -> Response:
        """Free a name: it may then be used for other content. What the caches hold is not touched."""
        self._check(request)
        return json_reply(self._service.caches().forget(request.path_params["tenant"], request.path_params["uuid"]))

    def table(self) -> list[Row]:
        """Return the routes: method, path, handler, options."""
        listing = documentation.reading(Aliases, places=(_OF, LIMIT), failing=(400,))
        forgetting = documentation.reading(Forgotten, places=(_WHOSE, _UUID), failing=(404,))
        return [
            ("GET", "/admin/aliases", self.aliases, listing),
            ("DELETE", "/admin/aliases/{tenant}/{uuid:path}", self.forget_alias, forgetting),
        ]
