"""``foveate bench``: print the measured ratios."""

from __future__ import annotations

from typing import Annotated

import typer


def bench(
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Run only the named benchmark; may be given again.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=100, help="Interleaved rounds of each comparison.")] = 5,
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Also write the results as JSON.")
    ] = None,
) -> None:
    """Measure the ratios of docs/performance.md on this machine, both sides of each in the same run."""
    from foveate.bench.suite import run_suite

    run_suite(only=tuple(only or ()), rounds=rounds, output=output)
