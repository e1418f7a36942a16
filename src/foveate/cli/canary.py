"""``foveate canary``: try a new version of the model on a running server, through its admin API.

Exit codes: 0 when the server did it, 1 when it refused or cannot be reached, 2 when the command line is wrong.
"""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from foveate.cli.admin_request import URL, AsJson, Key, Url, ask

canary = typer.Typer(
    help="Try a new version of the model on a running server: a share of contents, compared, then promote or roll back.",
    no_args_is_help=True,
)

Share = Annotated[str, typer.Option("--share", help="Share of contents that meet it: 5% or 0.05; 0% only compares.")]


@canary.command("start")
def start(
    model: Annotated[
        str, typer.Option("--model", help="The new version: a directory on the server's machine, or a hub id.")
    ],
    share: Share = "5%",
    warm: Annotated[
        int, typer.Option("--warm", min=0, help="Make the new embeddings of so many of the hottest contents ahead.")
    ] = 0,
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            help='Its vision encoder, package.module:Class; "": the model\'s. Default: as the settings say.',
        ),
    ] = None,
    url: Url = URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Load a new version beside the one that serves and give it a share of the contents. Waits until it is on trial."""
    wanted = parse_share(share)
    # The server may run elsewhere; but where the directory is here, it is meant whatever the server's working directory is.
    model = os.path.abspath(model) if os.path.isdir(model) else model
    body: dict[str, Any] = {"model": model, "share": wanted, "warm": warm}
    body |= {"encoder": encoder} if encoder is not None else {}
    _tell(ask(url, key, "POST canary", body, member="state"), as_json=as_json)


@canary.command("status")
def status(url: Url = URL, key: Key = None, as_json: AsJson = False) -> None:
    """Print what is known of the two versions, or how the last roll-out ended."""
    _tell(ask(url, key, "GET canary", member="state"), as_json=as_json)


@canary.command("share")
def share_(
    share: Annotated[str, typer.Argument(help="The new share: 25% or 0.25.")],
    url: Url = URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Change the share of contents that meet the new version."""
    _tell(ask(url, key, "POST canary/share", {"share": parse_share(share)}, member="state"), as_json=as_json)


@canary.command("promote")
def promote(url: Url = URL, key: Key = None, as_json: AsJson = False) -> None:
    """Let the new version answer everything. Change model.path too: a restarted server loads what its settings say."""
    _tell(ask(url, key, "POST canary/promote", member="state"), as_json=as_json)


@canary.command("rollback")
def rollback(url: Url = URL, key: Key = None, as_json: AsJson = False) -> None:
    """Let the old version answer everything again."""
    _tell(ask(url, key, "POST canary/rollback", member="state"), as_json=as_json)


def parse_share(text: str) -> float:
    """Return ``5%`` or ``0.05`` as 0.05. Raises typer.BadParameter."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"{text!r} is no share; write 5% or 0.05.")
    return share


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
