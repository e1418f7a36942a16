"""``foveate check``: whether what a server would do with these settings is right, before it is put to use.

``--embeddings`` compares one picture's embeddings, and a short answer about it, with transformers' own (with an upstream: with its answer
to pixels). Exit code 0: all agree; 1: something does not; 2: it cannot be told.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from foveate.cli.flags import with_settings
from foveate.cli.log_source import console
from foveate.decisions.agreement import (
    COSINE_MEAN_MIN,
    COSINE_MIN,
    LOGPROB_DIFFERENCE_MAX,
    NORM_RATIO_OFF_MAX,
    Comparison,
)
from foveate.observe.logging import configure
from foveate.settings import load

_NOTHING = "Pictures do not go on as embeddings here, so there is no path of Foveate's that could differ."


def _check(given: dict[str, Any], config: str | None, *, embeddings: bool, as_json: bool) -> None:
    """Check that a server of these settings would answer rightly. Takes the flags of serve; exit code 1: it would not."""
    if not embeddings:
        raise typer.BadParameter("say what to check: --embeddings")
    # Imported here so that --help starts without the server's libraries.
    from foveate.assembly.comparing import compare_embeddings

    settings = load(given, config=config)
    configure(json=settings.log.format == "json", level="warning")
    found = asyncio.run(compare_embeddings(settings, say=lambda text: typer.echo(text, err=True)))
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(_report(found)) + b"\n")
    else:
        _show(found)
    if any(one.reason for one in found):
        raise typer.Exit(1)


def _report(found: Sequence[Comparison]) -> dict[str, Any]:
    return {
        "agrees": not any(one.reason for one in found),
        "tolerances": {
            "cosine_mean_min": COSINE_MEAN_MIN,
            "cosine_min": COSINE_MIN,
            "norm_ratio_off_max": NORM_RATIO_OFF_MAX,
            "logprob_difference_max": LOGPROB_DIFFERENCE_MAX,
        },
        "compared": [
            # JSON knows no infinity.
            {name: None if value == math.inf else value for name, value in msgspec.structs.asdict(one).items()}
            for one in found
        ],
    }


def _show(found: Sequence[Comparison]) -> None:
    if not found:
        typer.echo(_NOTHING)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads = (
        "compared",
        "rows",
        "expected",
        "cosine mean",
        "least",
        "length ratio",
        "log-probability apart",
        "tokens",
        "verdict",
    )
    for head in heads:
        table.add_column(head, justify="left" if head in ("compared", "verdict") else "right")
    for one in found:
        table.add_row(
            one.what,
            *(
                _number(value)
                for value in (one.rows, one.rows_expected, one.cosine_mean, one.cosine_min, one.norm_ratio)
            ),
            _number(one.logprob_difference),
            str(one.steps or "-"),
            _verdict(one),
        )
    tolerance = ("tolerance", "", "", f"≥ {COSINE_MEAN_MIN}", f"≥ {COSINE_MIN}", f"1 ± {NORM_RATIO_OFF_MAX}")
    table.add_row(*tolerance, f"≤ {LOGPROB_DIFFERENCE_MAX}", "", "", style="dim")
    console().print(table)
    for one in found:
        if one.reason:
            typer.echo(f"{one.what}: {one.reason}.")


def _verdict(one: Comparison) -> str:
    if one.reason:
        return "differs"
    return "agrees" if one.logprob_difference is not None else "cannot be compared"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.5f}"


def _flag(name: str, flag: str, text: str) -> inspect.Parameter:
    annotation = Annotated[bool, typer.Option(flag, help=text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


check = with_settings(
    _check,
    _flag(
        "embeddings",
        "--embeddings",
        "Compare one picture's embeddings, and an answer about it, with transformers' own.",
    ),
    _flag("as_json", "--json", "Print JSON."),
)
