"""Where ``foveate log`` and its like read from, what may be asked of it, and how its text is made safe to print."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from foveate import settings
from foveate.core.clock import wall
from foveate.core.errors import StartupError
from foveate.core.stages import STAGES
from foveate.observe.log_query import Query, moment
from foveate.observe.log_reader import LogReader
from foveate.observe.records import OUTCOMES

PIPED_WIDTH = 200
"""Columns where the output is no terminal: enough that no id is cut."""

File = Annotated[str | None, typer.Option("--file", metavar="FILE", help="The request log; - reads standard input.")]
Config = Annotated[str | None, typer.Option("--config", metavar="FILE", help="Settings whose log.requests is read.")]
Modality = Annotated[str | None, typer.Option("--modality", help="text, multimodal or unknown.")]
InStage = Annotated[str | None, typer.Option("--stage", help=f"Requests that spent time in it: {', '.join(STAGES)}.")]
Status = Annotated[str | None, typer.Option("--status", help=f"{', '.join(OUTCOMES)}, or an error's code.")]
Since = Annotated[str | None, typer.Option("--since", help="90s, 15m, 2h, 7d ago, or a time (2026-11-30T07:40).")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Requests of this tenant.")]
Tier = Annotated[str | None, typer.Option("--tier", help="Requests by this tier.")]
Model = Annotated[str | None, typer.Option("--model", help="Requests for this model.")]


def query(*, modality: str | None, stage: str | None, since: str | None, **others: Any) -> Query:
    """Return what was asked for. Raises StartupError when a value cannot be one."""
    if modality is not None and modality not in ("text", "multimodal", "unknown"):
        raise StartupError(f"--modality is {modality!r}, but text, multimodal and unknown are all there are.")
    if stage is not None and stage not in STAGES:
        raise StartupError(f"--stage is {', '.join(STAGES)}.")
    try:
        begin = None if since is None else moment(since, datetime.fromtimestamp(wall(), UTC))
    except ValueError as error:
        raise StartupError(f"--since: {error}.") from None
    return Query(modality=modality, stage=stage, since=begin, **others)


def source(file: str | None, config: str | None) -> LogReader:
    """Return a reader of the file, or of the one that the settings name. Raises StartupError when there is none to read."""
    if file == "-":
        return LogReader(None, sys.stdin.buffer)
    named = file or settings.load(config=config).log.requests
    if file is None and named == "off":
        raise StartupError(
            "The request log is off (log.requests: off), so there is nothing to read. Set log.requests to a file and restart "
            "the server, or name a file with --file."
        )
    if file is None and named == "stdout":
        raise StartupError(
            "The request log goes to the server's standard output (log.requests: stdout), so there is no file to read. Set "
            "log.requests to a file, name a file with --file, or pipe the output to --file -."
        )
    path = Path(named)
    if not path.is_file():
        raise StartupError(f"There is no request log {named!r}. Name the file with --file.")
    return LogReader(path)


def console() -> Console:
    """Return standard output: with colours at a terminal, wide and plain where it is piped."""
    plain = not sys.stdout.isatty()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names are whatever clients sent; a terminal that cannot show a character shows another, and the command goes on.
        sys.stdout.reconfigure(errors="replace")
    return Console(width=PIPED_WIDTH if plain else None, highlight=False, markup=False, emoji=False)


def say_damage(reader: LogReader) -> None:
    """Tell on standard error of lines that could not be read."""
    if reader.damaged:
        lines = "line was" if reader.damaged == 1 else "lines were"
        typer.echo(f"foveate: {reader.damaged} damaged {lines} skipped", err=True)


def printable(text: str) -> str:
    """Return text that a client chose without characters that a terminal would obey."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
