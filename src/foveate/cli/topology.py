"""``foveate topology``: see and change where vision encoder and language model run on a running server, through its admin API.

Exit codes: 0 when the server did it, 1 when it refused or cannot be reached, 2 when the command line is wrong.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from foveate.cli.admin_request import URL, AsJson, Key, Url, ask

topology = typer.Typer(
    help="Where the vision encoder, prefill and token decode run, on a running server: in one process, or apart.",
    no_args_is_help=True,
)

Kind = Literal["agg", "e-pd", "e-p-d"]
_DOES = {"pd": "whole requests", "p": "prefill", "d": "token decode"}


@topology.command("show")
def show(url: Url = URL, key: Key = None, as_json: AsJson = False) -> None:
    """Print which encode workers and engine processes there are, and of each how it is and what it has to do."""
    _tell(ask(url, key, "GET topology", member="encoders"), as_json=as_json)


@topology.command("set")
def set_(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="agg: all in the engine's process. e-pd: pictures on encode workers. e-p-d: prefill and token decode apart, too."
        ),
    ],
    encoders: Annotated[
        int | None,
        typer.Option(
            "--encoders",
            min=1,
            help="Encode workers with e-pd and e-p-d. Default: as there are, or were configured.",
        ),
    ] = None,
    prefill: Annotated[
        int | None,
        typer.Option("--prefill-workers", min=1, help="Prefill workers with e-p-d. Default: likewise."),
    ] = None,
    decode: Annotated[
        int | None, typer.Option("--decode-workers", min=1, help="Token-decode workers with e-p-d. Default: likewise.")
    ] = None,
    url: Url = URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Change it while requests run; none fails. Waits until it is done. Change the settings too: a restarted server has those."""
    numbers = {"encoders": encoders, "prefill": prefill, "decode": decode}
    body = {"kind": kind, **{name: number for name, number in numbers.items() if number}}
    _tell(ask(url, key, "PUT topology", body, member="encoders"), as_json=as_json)


def _tell(report: dict[str, Any], *, as_json: bool) -> None:
    typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(lines(report)))


def lines(report: dict[str, Any]) -> list[str]:
    """Return a report as it is printed for people."""
    most = f", up to {report['encoders_max']} as the queue asks for" if report["encoders_max"] else ""
    apart = f"; prefill: {report['prefill']}, token decode: {report['decode']}" if report["prefill"] else ""
    told = [f"topology    {report['kind']}, encode workers: {report['encoders']}{most}{apart}"]
    if report["encoders"]:
        local = "encodes where no worker can" if report["local"] else "cannot encode"
        told.append(
            f"waiting     {report['waiting']} pictures; the engine's process {local} ({report['local_pictures']} so far)"
        )
    return [*told, *(_engine(one) for one in report["engines"]), *(_worker(one) for one in report["workers"])]


def _engine(one: dict[str, Any]) -> str:
    state = "leaving" if one["leaving"] else "draining" if one["draining"] else "up" if one["usable"] else "down"
    return f"engine {one['name']:<5}{state:<11} {_DOES[one['role']]}, {one['in_flight']} under way, {one['restarts']} restarts"


def _worker(one: dict[str, Any]) -> str:
    return (
        f"encoder {one['worker']:<4}{one['state']:<11} {one['waiting'] + one['held']} to do, {one['pictures']} done in "
        f"{one['batches']} batches and {one['busy_seconds']:.1f} s, {one['restarts']} restarts"
    )
