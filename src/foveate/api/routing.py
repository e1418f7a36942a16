"""What every route without a stream is made of: its row in the table of routes, and its reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]
Row = tuple[str, str, Handler, dict[str, Any]]
"""A route: method, path, handler, options for the framework."""


def json_reply(reply: Any, *, status: int = 200) -> Response:
    """Return a reply that no cache may keep."""
    return Response(msgspec.json.encode(reply), status, {"cache-control": "no-store"}, "application/json")
