"""``foveate topology``: see and change where the vision encoder runs on a running server, through its admin API.

Exit codes: 0 when the server did it, 1 when it refused or cannot be reached, 2 when the command line is wrong.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from foveate.cli.admin_request import URL, AsJson, Key, Url, ask

topology = typer.Typer(
    help="Where the vision encoder runs, on a running server: in the engine's process, or on encode workers.",
    no_args_is_help=True,
)

Kind = Literal["agg", "e-pd", "e-p-d"]


@topology.command("show")
def show(url: Url = URL, key: Key = None, as_json: AsJson = False) -> None:
    """Print how many encode workers there are, and of each how it is and what it has to do."""
    _tell(ask(url, key, "GET topology", member="encoders"), as_json=as_json)


@topology.command("set")
def set_(
    kind: Annotated[
        Kind,
        typer.Argument(help="agg: in the engine's process. e-pd, or e-p-d where it was started so: on encode workers."),
    ],
    encoders: Annotated[int, typer.Option("--encoders", min=1, help="Encode workers with e-pd and e-p-d.")] = 1,
    url: Url = URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Change it while requests run; none fails. Waits until it is done. Change the settings too: a restarted server has those."""
    _tell(ask(url, key, "PUT topology", {"kind": kind, "encoders": encoders}, member="encoders"), as_json=as_json)


def _tell(report: dict[str, Any], *, as_json: bool) -> None:
    typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(lines(report)))


def lines(report: dict[str, Any]) -> list[str]:
    """Return a report as it is printed for people."""
    most = f", up to {report['encoders_max']} as the queue asks for" if report["encoders_max"] else ""
    told = [f"topology    {report['kind']}, encode workers: {report['encoders']}{most}"]
    if report["encoders"]:
        local = "encodes where no worker can" if report["local"] else "cannot encode"
        told.append(
            f"waiting     {report['waiting']} pictures; the engine's process {local} ({report['local_pictures']} so far)"
        )
    return [*told, *(_worker(one) for one in report["workers"])]


def _worker(one: dict[str, Any]) -> str:
    return (
        f"encoder {one['worker']:<4}{one['state']:<11} {one['waiting'] + one['held']} to do, {one['pictures']} done in "
        f"{one['batches']} batches and {one['busy_seconds']:.1f} s, {one['restarts']} restarts"
    )
