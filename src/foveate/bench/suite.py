"""The benchmarks by name, and how their figures are shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from foveate.bench import eviction, jpeg, lag, latency, observing, reuse
from foveate.bench.figures import Figure
from foveate.core.errors import StartupError

BENCHMARKS: Final[Mapping[str, Callable[[int], list[Figure]]]] = {
    "jpeg": jpeg.run,
    "repeated": latency.repeated,
    "overhead": latency.overhead,
    "unattributed": latency.unattributed,
    "lag": lag.run,
    "observing": observing.run,
    "exposition": observing.exposition,
    "policies": eviction.policies,
    "operations": eviction.operations,
    "copies": reuse.copies,
    "flights": reuse.flights,
    "curves": eviction.curves,
}


def run_suite(*, only: tuple[str, ...], rounds: int, output: str | None) -> None:
    """Run the named benchmarks (all, when none is named), print their figures, and write them to ``output`` as JSON.

    Raises StartupError for a name that is none.
    """
    unknown = [name for name in only if name not in BENCHMARKS]
    if unknown:
        raise StartupError(f"There is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}.")
    console = Console(width=None if os.isatty(1) else 200)
    figures: list[Figure] = []
    for name in only or tuple(BENCHMARKS):
        console.print(f"[dim]running {name} …[/dim]")
        figures += BENCHMARKS[name](rounds)
    console.print(_table(figures))
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    console.print(f"{os.cpu_count()} cores; load average at the end (1, 5, 15 min): {load}. Ratios of one run.")
    if output is not None:
        Path(output).write_bytes(msgspec.json.format(msgspec.json.encode(figures)))


def _table(figures: list[Figure]) -> Table:
    table = Table("figure", "median", "spread", "goal", "", "compared")
    for figure in figures:
        table.add_row(*figure.row())
    return table
