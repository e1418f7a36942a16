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
        console().print(_table(found))
    else:
        typer.echo(f"foveate: none of the log's {reader.read} requests is one of these", err=True)
    say_damage(reader)


def _table(found: list[Logged]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("ended", no_wrap=True)
    table.add_column("id", no_wrap=True, overflow="fold")
    for name in ("modality", "outcome"):
        table.add_column(name)
    for name in ("ttft ms", "total ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("slowest stage")
    table.add_column("ms", justify="right", no_wrap=True)
    for name in ("media", "prompt", "answer"):
        table.add_column(name, justify="right", no_wrap=True)
    for line, _ in found:
        table.add_row(*_cells(line))
    return table


def _cells(line: RequestLine) -> list[Text]:
    stages = stages_of(line)
    worst = max(stages, key=lambda stage: stages[stage], default=None)
    texts = (
        line.time,
        line.id,
        line.modality,
        line.error or line.outcome,
        _ms(line.ttft_ms),
        _ms(line.total_ms),
        worst or "",
        _ms(stages[worst]) if worst else "",
        str(line.images + line.videos or ""),
        str(line.text_tokens + line.visual_tokens or ""),
        str(line.output_tokens or ""),
    )
    return [Text(printable(text)) for text in texts]


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
