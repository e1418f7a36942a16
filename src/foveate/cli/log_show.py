"""``foveate log show``: one request's waterfall in the terminal, stage by stage and item by item."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foveate.cli.log_source import Config, File, console, printable, say_damage, source
from foveate.core.errors import StartupError
from foveate.observe.log_query import find
from foveate.observe.request_line import RequestLine
from foveate.observe.waterfall import Bar, Waterfall, waterfall

BARS_MIN = 12
BARS_MAX = 64
"""Characters of the time axis: what the terminal has left of it."""
BESIDE = 54
"""Columns of the names and figures beside it, the longest of them and the space between included; they are never cut for it."""


def show(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="The request's id (x-request-id), or its beginning.")],
    file: File = None,
    config: Config = None,
) -> None:
    """Print when each stage of a request ran, for itself and for each of its pictures and videos. * marks the critical path."""
    reader = source(file, config)
    try:
        line = find(reader, request_id)
    except LookupError as error:
        raise StartupError(str(error)) from None
    out = console()
    for text in _facts(line):
        out.print(Text(printable(text)), soft_wrap=True)
    made = waterfall(line)
    if made.bars:
        out.print()
        out.print(_chart(made, out))
    for text in _notes(line, made):
        out.print(Text(text), soft_wrap=True)
    say_damage(reader)


def _facts(line: RequestLine) -> list[str]:
    ended = line.outcome if line.error is None else f"{line.outcome}: {line.error}"
    limit = f" ({line.limit_name})" if line.limit_name else ""
    who = " ".join(f"{name} {value}" for name, value in (("tenant", line.tenant), ("tier", line.tier)) if value)
    facts = [
        f"{line.id}  {line.modality}  {ended}{limit}",
        f"ended {line.time}  model {line.model or '-'}  {who}".rstrip(),
    ]
    carried = [f"{line.text_tokens} text", f"{line.visual_tokens} visual", f"{line.output_tokens} output tokens"]
    if line.images or line.videos:
        carried.insert(
            0, f"{_number(line.images, 'picture')}, {_number(line.videos, 'video')}, {line.media_bytes} bytes:"
        )
    facts.append(" ".join(carried))
    found = (
        ("encoder-cache hits", line.encoder_cache_hits),
        ("processor-cache hits", line.processor_cache_hits),
        ("shared with other requests", line.shared),
        ("prompt tokens in the engine's cache", line.cached_tokens),
    )
    facts += [", ".join(f"{name} {number}" for name, number in found if number)] if any(n for _, n in found) else []
    return facts


def _chart(made: Waterfall, out: Console) -> Table:
    axis = min(max(out.width - BESIDE, BARS_MIN), BARS_MAX)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("stage", no_wrap=True)
    table.add_column(f"0{f'{made.window_ms:.1f} ms':>{axis - 1}}", no_wrap=True, width=axis)
    for name in ("from ms", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    before: object = "nothing yet"
    for bar in made.bars:
        owner = "request" if bar.item is None else f"item {bar.item}"
        style = "bold" if bar.critical else "dim"
        cells = (
            owner if bar.item != before else "",
            f"{bar.stage}{' *' if bar.critical else ''}",
            _drawn(bar, made.window_ms, axis, "█" if out.encoding.lower().startswith("utf") else "#"),
            f"{bar.start_ms:.1f}",
            f"{bar.ms:.1f}",
        )
        table.add_row(*(Text(cell, style=style) for cell in cells))
        before = bar.item
    return table


def _drawn(bar: Bar, window_ms: float, axis: int, block: str) -> str:
    """Return the bar on a time axis of so many characters; the shortest is one character, so that nothing that happened is invisible."""
    scale = axis / window_ms if window_ms > 0 else 0.0
    start = min(int(bar.start_ms * scale), axis - 1)
    length = max(round(bar.ms * scale), 1)
    return " " * start + block * min(length, axis - start)


def _notes(line: RequestLine, made: Waterfall) -> list[str]:
    notes = [""]
    if line.ttft_ms is not None:
        notes.append(f"ttft {line.ttft_ms:.1f} ms = the stages marked * + unattributed {line.unattributed_ms:.1f} ms")
    else:
        notes.append(
            f"no first token; {line.total_ms:.1f} ms = the stages marked * + unattributed {line.unattributed_ms:.1f} ms"
        )
    if line.tpot_ms is not None:
        notes.append(f"tpot {line.tpot_ms:.2f} ms a token, {line.total_ms - (line.ttft_ms or 0.0):.1f} ms in all")
    if isinstance(line.prefill_overlap_ms, float):
        notes.append(
            f"overlap {line.prefill_overlap_ms:.1f} ms of llm_prefill (not marked) ran before all pictures were encoded"
        )
    if line.items_omitted:
        notes.append(f"{line.items_omitted} more items that were ready before these are not in the log")
    if not made.measured:
        notes.append("this line has no start times (older version): stages are laid end to end")
    return notes


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
