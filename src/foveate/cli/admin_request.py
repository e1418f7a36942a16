"""Ask a running server's admin API on behalf of a command.

Exit codes: 0 when the server did it, 1 when it refused or cannot be reached, 2 when the command line is wrong.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Annotated, Any

import typer

from foveate.cli.server_address import address_fault, one_line

KEY_VARIABLE = "FOVEATE_ADMIN_KEY"
SECONDS_MAX = 7500.0
"""A little more than a server may be told to take for loading a version (server.start_seconds_max)."""

Url = Annotated[str, typer.Option("--url", help="The server's address.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", envvar=KEY_VARIABLE, help="An API key with admin: true. Better in the environment.", show_envvar=True
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
URL = "http://127.0.0.1:8000"


def ask(url: str, key: str | None, what: str, body: dict[str, Any] | None = None, *, member: str) -> dict[str, Any]:
    """Return what the server answers to ``what``, a method and a path below ``/admin/``; end the command with what it refuses.

    ``member`` is what every answer of a Foveate server to this has.
    """
    method, _, path = what.partition(" ")
    fault = address_fault(url, key)
    if fault is not None:
        raise _refused(fault)
    headers = {"content-type": "application/json", **({"x-api-key": key} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url.rstrip('/')}/admin/{path}", data, headers, method=method)
    # An admin key is not for a proxy that the environment names for fetching pages.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=SECONDS_MAX) as reply:
            report = json.load(reply)
    except urllib.error.HTTPError as error:
        raise _refused(one_line(_message(error))) from None
    except (OSError, ValueError, HTTPException) as error:
        raise _refused(f"The server at {url} cannot be asked: {one_line(getattr(error, 'reason', error))}") from None
    if not isinstance(report, dict) or member not in report:
        raise _refused(f"What answers at {url} is no Foveate server.")
    return report


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError, HTTPException):
        return f"The server answered {error.code}."


def _refused(message: str) -> typer.Exit:
    sys.stderr.write(f"foveate: {message}\n")
    return typer.Exit(1)
