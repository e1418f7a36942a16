"""``foveate canary``: try a new version of the model on a running server, through its admin API.

Exit codes: 0 when the server did it, 1 when it refused or cannot be reached, 2 when the command line is wrong.
"""

from __future__ import annotations

import json
import os
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

canary = typer.Typer(
    help="Try a new version of the model on a running server: a share of contents, compared, then promote or roll back.",
    no_args_is_help=True,
)

Url = Annotated[str, typer.Option("--url", help="The server's address.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", envvar=KEY_VARIABLE, help="An API key with admin: true. Better in the environment.", show_envvar=True
    ),
]
Share = Annotated[str, typer.Option("--share", help="Share of contents that meet it: 5% or 0.05; 0% only compares.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
URL = "http://127.0.0.1:8000"


@canary.command("start")
def start(
    model: Annotated[
        str, typer.Option("--model", help="The new version: a directory on the server's machine, or a hub id.")
    ],
    share: Share = "5%",
    warm: Annotated[
        int, typer.Option("--warm", min=0, help="Make the new embeddings of so many of the hottest contents ahead.")
    ] = 0,
    url: Url = URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Load a new version beside the one that serves and give it a share of the contents. Waits until it is on trial."""
    wanted = parse_share(share)
    # The server may run elsewhere; but where the directory is here, it is meant whatever the server's working directory is.
    model = os.path.abspath(model) if os.path.isdir(model) else model
    _tell(_ask(url, key, "POST", "", {"model": model, "share": wanted, "warm": warm}), as_json=as_json)


@canary.command("status")
def status(url: Url = URL, key: Key = None, as_json: AsJson = False) -> None:
    """Print what is known of the two versions, or how the last roll-out ended."""
    _tell(_ask(url, key, "GET", "", None), as_json=as_json)


@canary.command("share")
def share_(
    share: Annotated[str, typer.Argument(help="The new share: 25% or 0.25.")],
    url: Url = URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Change the share of contents that meet the new version."""
    _tell(_ask(url, key, "POST", "/share", {"share": parse_share(share)}), as_json=as_json)


@canary.command("promote")
def promote(url: Url = URL, key: Key = None, as_json: AsJson = False) -> None:
    """Let the new version answer everything. Change model.path too: a restarted server loads what its settings say."""
    _tell(_ask(url, key, "POST", "/promote", None), as_json=as_json)


@canary.command("rollback")
def rollback(url: Url = URL, key: Key = None, as_json: AsJson = False) -> None:
    """Let the old version answer everything again."""
    _tell(_ask(url, key, "POST", "/rollback", None), as_json=as_json)


def parse_share(text: str) -> float:
    """Return ``5%`` or ``0.05`` as 0.05. Raises typer.BadParameter."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"{text!r} is no share; write 5% or 0.05.")
    return share


def _ask(url: str, key: str | None, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """Return the server's report; end the command with what it refuses."""
    fault = address_fault(url, key)
    if fault is not None:
        raise _refused(fault)
    headers = {"content-type": "application/json", **({"x-api-key": key} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url.rstrip('/')}/admin/canary{path}", data, headers, method=method)
    # An admin key is not for a proxy that the environment names for fetching pages.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=SECONDS_MAX) as reply:
            report = json.load(reply)
    except urllib.error.HTTPError as error:
        raise _refused(one_line(_message(error))) from None
    except (OSError, ValueError, HTTPException) as error:
        raise _refused(f"The server at {url} cannot be asked: {one_line(getattr(error, 'reason', error))}") from None
    if not isinstance(report, dict) or "state" not in report:
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


def _tell(report: dict[str, Any], *, as_json: bool) -> None:
    typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(lines(report)))


def lines(report: dict[str, Any]) -> list[str]:
    """Return a report as it is printed for people."""
    share = f", {report['share'] * 100:.4g} % of contents" if report["state"] == "on_trial" else ""
    told = [f"state       {report['state'].replace('_', ' ')}{share}"]
    told += [f"reason      {report['reason']}"] if report["reason"] else []
    # Requests are counted per version while one is on trial, and not otherwise: zeros would say that nobody asks.
    counted = report["state"] in ("on_trial", "promoted", "rolled_back")
    for role in ("stable", "canary"):
        told += _version(role, report[role], counted=counted) if report[role] else []
    found = report["comparisons"]
    if found:
        told.append(
            f"compared    {found['compared']} pictures: cosine {_figure(found['cosine_mean'])} on average, {_figure(found['cosine_min'])} "
            f"at worst; length {_figure(found['norm_ratio_mean'])} times"
        )
        others = [
            f"{found[name]} {name.replace('_', ' ')}" for name in ("not_finite", "rows_differ", "failed", "skipped")
        ]
        told.append(f"            {', '.join(others)}")
    if report["warmed"] or report["not_held"]:
        told.append(f"warmed      {report['warmed']} contents; of {report['not_held']} nothing was held")
    if report["still_ending"]:
        told.append(f"ending      {report['still_ending']} versions finish what they began")
    return told


def _version(role: str, version: dict[str, Any], *, counted: bool) -> list[str]:
    told = [f"{role:<11} {version['model']}"]
    if version["encoder_version"]:
        told.append(
            f"            encoder {version['encoder_version'][:12]}, processor {version['processor_version'][:12]}"
        )
    if version["encoder_version"] and counted:
        told[-1] += (
            f"; {version['requests']} requests, {version['errors']} errors; first token {_figure(version['ttft_ms_median'])} ms in "
            f"the middle, {_figure(version['ttft_ms_p95'])} ms at 95 % ({version['fresh']} fresh)"
        )
    return told


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
