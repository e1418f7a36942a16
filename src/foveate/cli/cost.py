"""``foveate cost``: what requests took and cost, in total, or request by request with the reasons why they differ."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Annotated, Final, TypeVar

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from foveate import settings
from foveate.cli.admin_request import Key
from foveate.cli.log_source import (
    Config,
    File,
    Modality,
    Model,
    Since,
    Tenant,
    Tier,
    console,
    printable,
    query,
    say_damage,
    source,
)
from foveate.cli.server_address import address_fault, one_line
from foveate.core.errors import StartupError
from foveate.observe.cost import DIMENSIONS, CostReport, Dimension, Prices, Totals, table_of
from foveate.observe.cost_tree import Node, Value, reasons, tree
from foveate.observe.log_query import find
from foveate.observe.request_line import RequestLine

T = TypeVar("T")
ANSWER_SECONDS_MAX: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 2**20
_BY_DEFAULT: Final = "modality,tenant,model,tier"
_HEADS: Final = (
    "requests",
    "fetched MB",
    "media cpu s",
    "processor cpu s",
    "encoder s",
    "engine token-s",
    "spared s",
    "cost",
)

_NARROW: Final = 14
"""Columns of a figure where totals stand side by side; the largest amounts of money and the word multimodal fit."""

Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Ask this server instead of reading a log.")]


def cost(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Requests to compare; none: totals.")
    ] = None,
    by: Annotated[str, typer.Option("--by", help="What totals are by, comma-separated.")] = _BY_DEFAULT,
    url: Url = None,
    key: Key = None,
    modality: Modality = None,
    since: Since = None,
    tenant: Tenant = None,
    tier: Tier = None,
    model: Model = None,
    file: File = None,
    config: Config = None,
) -> None:
    """Print what requests took and cost, by tenant, model, modality and tier; with two ids, what makes these two differ.

    Filters hold for a log; a server's totals are of all requests since its start. Prices are those of the settings section cost.
    """
    dimensions = _dimensions(by)
    if url is not None:
        if ids:
            paths = [f"/admin/cost/requests/{urllib.parse.quote(each, safe='')}" for each in ids]
            lines = [_decoded(_asked(url, key, path), RequestLine) for path in paths]
            _compare(lines, _report(url, key, dimensions).prices)
        else:
            _print_totals(_report(url, key, dimensions))
        return
    prices = Prices(**settings.load(config=config).cost.model_dump())
    reader = source(file, config)
    wanted = query(modality=modality, stage=None, since=since, tenant=tenant, tier=tier, model=model)
    if ids:
        logged = [entry for entry in reader if any(entry[0].id.startswith(each) for each in ids)]
        try:
            _compare([find(logged, each) for each in ids], prices)
        except LookupError as error:
            raise StartupError(str(error)) from None
    else:
        _print_totals(table_of((line for line, _ in reader if wanted.matches(line)), prices).report(dimensions))
    say_damage(reader)


def _dimensions(by: str) -> list[Dimension]:
    known: dict[str, Dimension] = {name: name for name in DIMENSIONS}
    names = [name.strip() for name in by.split(",") if name.strip()]
    if any(name not in known for name in names):
        raise StartupError(f"--by may name {', '.join(DIMENSIONS)}, comma-separated.")
    return [known[name] for name in names]


def _report(url: str, key: str | None, by: list[Dimension]) -> CostReport:
    return _decoded(_asked(url, key, f"/admin/cost?by={','.join(by)}"), CostReport)


def _asked(url: str, key: str | None, path: str) -> bytes:
    """Return a server's answer. Raises StartupError with what it said."""
    fault = address_fault(url, key)
    if fault is not None:
        raise StartupError(fault)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        asked = urllib.request.Request(url.rstrip("/") + path, headers=headers)
        # An admin key is not for a proxy that the environment names for fetching pages.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(asked, timeout=ANSWER_SECONDS_MAX) as answer:
            return bytes(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise StartupError(f"{url} answered {error.code}: {_said(error)}") from None
    except (OSError, ValueError, HTTPException) as error:
        raise StartupError(f"{url} cannot be asked: {one_line(getattr(error, 'reason', error))}") from None


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return printable(str(json.loads(error.read(65536))["error"]["message"]))
    except (OSError, ValueError, KeyError, TypeError, HTTPException):
        return error.reason


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise StartupError(f"The server's answer is not one of a Foveate server: {error}") from None


def _print_totals(report: CostReport) -> None:
    heads = (*report.by, *_HEADS)
    rows = [(*(printable(getattr(row, name) or "-") for name in report.by), *_figures(row)) for row in report.rows]
    out = console()
    table = _across(heads, rows, len(report.by))
    if out.measure(table, options=out.options.update(width=10_000)).maximum <= out.width:
        out.print(table)
    else:
        for number, some in enumerate(_beside(rows, max((out.width - max(map(len, heads))) // (_NARROW + 2), 1))):
            out.print(*([""] if number else []), _down(heads, some))
    if not any(msgspec.structs.astuple(report.prices)):
        typer.echo("foveate: no prices are set (settings section cost), so every cost is 0", err=True)


def _across(heads: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> Table:
    """Return a row of figures for each row of totals; the first ``names`` of them say whose these are."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _down(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a column for each row of totals, for a terminal in which a row has no room: names break, figures are never cut."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    for _ in rows:
        table.add_column(justify="right", overflow="fold", width=_NARROW)
    for place, head in enumerate(heads):
        table.add_row(head, *(Text(row[place]) for row in rows))
    return table


def _beside(rows: Sequence[Sequence[str]], number: int) -> list[Sequence[Sequence[str]]]:
    return [rows[place : place + number] for place in range(0, len(rows), number)]


def _figures(row: Totals) -> list[str]:
    seconds = (row.media_cpu_ms, row.processor_cpu_ms, row.encoder_ms, row.engine_token_ms, row.cache_saved_ms)
    return [
        str(row.requests),
        f"{row.fetch_bytes / 1e6:.2f}",
        *(f"{ms / 1e3:.3f}" for ms in seconds),
        f"{row.cost.total:.6f}",
    ]


def _compare(lines: list[RequestLine], prices: Prices) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for line in lines:
        table.add_column(
            Text(f"{printable(line.id)[:20]}…\n{line.modality} {line.error or line.outcome}"), justify="right"
        )
    if len(lines) == 2:
        table.add_column("difference", justify="right")
    for node in tree(lines, prices):
        table.add_row(Text("  " * node.depth + node.name), *_cells(node), style="" if node.depth else "bold")
    out = console()
    out.print(table)
    if len(lines) == 2:
        out.print()
        for sentence in reasons(*lines):
            out.print(Text(sentence), soft_wrap=True)


def _cells(node: Node) -> list[str]:
    cells = [_cell(value, node.unit) for value in node.values]
    if len(cells) == 2:
        first, second = (0.0 if value is None else value for value in node.values)
        both = isinstance(first, int | float) and isinstance(second, int | float) and bool(node.unit)
        cells.append(_cell(float(second) - float(first), node.unit, "+") if both and first != second else "")
    return cells


def _cell(value: Value, unit: str, sign: str = "") -> str:
    if value is None or not unit:
        return ""
    if isinstance(value, str):
        return value
    if unit == "money":
        return f"{value:{sign}.8f}"
    return f"{value:{sign}.0f} {unit}" if unit in ("bytes", "tokens") else f"{value:{sign}.1f} {unit}"
