"""``foveate log``: the requests of a request log, filtered: the latest, or the slowest."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from foveate.cli.log_export import export
from foveate.cli.log_show import show
from foveate.cli.log_source import (
    Config,
    File,
    InStage,
    Modality,
    Model,
    Since,
    Status,
    Tenant,
    Tier,
    console,
    printable,
    query,
    say_damage,
    source,
)
from foveate.observe.log_query import Logged, latest, slowest, stages_of
from foveate.observe.request_line import RequestLine

SHOWN_DEFAULT = 20
WIDE = 160
"""Columns from which everything fits. Below, the time has no date and the id only its beginning, which ``log show`` takes, too."""
ID_WIDTH = 18

log = typer.Typer(help="Read a request log: filter it, explain a request, export it.", invoke_without_command=True)
log.command("show")(show)
log.command("export")(export)


@log.callback()
def list_requests(
    context: typer.Context,
    number: Annotated[int, typer.Option("--last", min=1, max=100_000, help="How many of the latest.")] = SHOWN_DEFAULT,
    slow: Annotated[
        int | None,
        typer.Option("--slowest", min=1, max=100_000, help="The slowest instead, by the stage if one is named."),
    ] = None,
    modality: Modality = None,
    stage: InStage = None,
    status: Status = None,
    since: Since = None,
    tenant: Tenant = None,
    tier: Tier = None,
    model: Model = None,
    json: Annotated[bool, typer.Option("--json", help="Print the lines as they were logged.")] = False,
    file: File = None,
    config: Config = None,
) -> None:
    """List the latest requests of the log, or the slowest; ``foveate log show ID`` explains one."""
    if context.invoked_subcommand is not None:
        return
    wanted = query(modality=modality, stage=stage, since=since, status=status, tenant=tenant, tier=tier, model=model)
    reader = source(file, config)
    found = latest(reader, wanted, number) if slow is None else slowest(reader, wanted, slow)
    if json:
        for _, raw in found:
            sys.stdout.write(raw.decode() + "\n")
    elif found:
        out = console()
        out.print(_table(found, out.width))
    else:
        typer.echo(f"foveate: none of the log's {reader.read} requests is one of these", err=True)
    say_damage(reader)


def _table(found: list[Logged], width: int) -> Table:
    """Return the list; what does not fit in ``width`` columns is left out or cut, so that the figures never are."""
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("ended", "id", "modality"):
        table.add_column(name, no_wrap=True, overflow="fold")
    table.add_column("outcome", no_wrap=wide, overflow="ellipsis", min_width=7)
    table.add_column("ttft ms", justify="right", no_wrap=True)
    table.add_column("slowest stage", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    for name in ("total ms", "media", "prompt", "answer") if wide else ():
        table.add_column(name, justify="right", no_wrap=True)
    for line, _ in found:
        table.add_row(*(Text(printable(text)) for text in _cells(line, wide)))
    return table


def _cells(line: RequestLine, wide: bool) -> list[str]:
    stages = stages_of(line)
    worst = max(stages, key=lambda stage: stages[stage], default=None)
    cells = [
        line.time if wide else line.time[11:19],
        line.id if wide else line.id[:ID_WIDTH],
        line.modality,
        line.error or line.outcome,
        _ms(line.ttft_ms),
        worst or "",
        _ms(stages[worst]) if worst else "",
    ]
    if wide:
        cells.append(_ms(line.total_ms))
        cells += [str(number or "") for number in (line.images + line.videos, line.text_tokens + line.visual_tokens)]
        cells.append(str(line.output_tokens or ""))
    return cells


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
