"""The admin API of the cost ledger: totals by tenant, model, modality and tier, and single requests to compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, get_args

from fastapi import Request
from starlette.responses import Response

from foveate.api import documentation
from foveate.api.routing import Row, json_reply
from foveate.core.errors import InvalidParameter, RequestNotFound
from foveate.journey.port import Service
from foveate.observe.cost import DIMENSIONS, CostReport, Dimension
from foveate.observe.request_line import RequestLine

_KNOWN: Final[dict[str, Dimension]] = {name: name for name in get_args(Dimension)}
_BY: Final = documentation.in_query(
    "by",
    {"type": "string", "default": ",".join(DIMENSIONS)},
    f"What to add up by, comma-separated: {', '.join(DIMENSIONS)}.",
)
_ID: Final = documentation.in_path("id", {"type": "string"}, "A request's id (`X-Request-Id`).")


class CostRoutes:
    """The handlers. ``check`` refuses whoever is no admin."""

    def __init__(self, service: Service, check: Callable[[Request], None]) -> None:
        self._service = service
        self._check = check

    async def cost(self, request: Request) -> Response:
        """Tell what requests took since the start, and what that comes to by the prices of the settings section `cost`."""
        self._check(request)
        return json_reply(self._service.observed().costs.report(_by(request)))

    async def cost_of_request(self, request: Request) -> Response:
        """Return one of the requests that ended last, as the request log has it, with all its contributions."""
        self._check(request)
        found = self._service.observed().costs.recent(request.path_params["id"])
        if found is None:
            raise RequestNotFound
        return json_reply(found)

    def table(self) -> list[Row]:
        """Return the routes: method, path, handler, options."""
        single = documentation.reading(RequestLine, places=(_ID,), failing=(404,))
        return [
            ("GET", "/admin/cost", self.cost, documentation.reading(CostReport, places=(_BY,), failing=(400,))),
            ("GET", "/admin/cost/requests/{id}", self.cost_of_request, single),
        ]


def _by(request: Request) -> list[Dimension]:
    text = request.query_params.get("by", ",".join(DIMENSIONS))
    names = [name.strip() for name in text.split(",") if name.strip()]
    if any(name not in _KNOWN for name in names):
        raise InvalidParameter(f"by may name {', '.join(DIMENSIONS)}, comma-separated.", param="by")
    return [_KNOWN[name] for name in names]
