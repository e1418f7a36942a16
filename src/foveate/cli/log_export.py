"""``foveate log export``: the request log as a Parquet file, for duckdb, polars, pandas and their like."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import typer

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
    query,
    say_damage,
    source,
)
from foveate.core.errors import StartupError
from foveate.observe.request_line import RequestLine

_SQL = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}


def export(
    target: Annotated[
        str, typer.Argument(metavar="FILE.parquet", help="File to write; one that is there is replaced.")
    ],
    modality: Modality = None,
    stage: InStage = None,
    status: Status = None,
    since: Since = None,
    tenant: Tenant = None,
    tier: Tier = None,
    model: Model = None,
    file: File = None,
    config: Config = None,
) -> None:
    """Write the log's requests as Parquet, one row a request, one column a field; ``items`` is a list of structs."""
    wanted = query(modality=modality, stage=stage, since=since, status=status, tenant=tenant, tier=tier, model=model)
    reader = source(file, config)
    path = Path(target)
    if not path.parent.is_dir():
        raise StartupError(f"There is no directory {str(path.parent)!r} to write {path.name!r} to.")
    with tempfile.TemporaryDirectory(prefix="foveate-export-") as directory:
        rows = Path(directory) / "rows.jsonl"
        number = 0
        with rows.open("wb") as out:
            for line, raw in reader:
                if wanted.matches(line):
                    out.write(raw + b"\n")
                    number += 1
        # Beside the target, so that the rename replaces it in one step.
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            _to_parquet(rows, part)
            part.replace(path)
        except OSError as error:
            raise StartupError(f"{target!r} cannot be written: {error.strerror}.") from error
        finally:
            part.unlink(missing_ok=True)
    typer.echo(f"{number} requests written to {target}")
    say_damage(reader)


def _to_parquet(rows: Path, target: Path) -> None:
    """Raises OSError."""
    import duckdb

    with duckdb.connect() as database:
        read = database.read_json(str(rows), format="newline_delimited", columns=_columns())
        read.project("* REPLACE (CAST(time AS TIMESTAMP) AS time)").write_parquet(str(target), compression="zstd")


def _columns() -> dict[str, str]:
    return {name: _type(annotation) for name, annotation in get_type_hints(RequestLine).items()}


def _type(annotation: Any) -> str:
    """Return the column type of a field: what it is when it is not null."""
    arguments = [argument for argument in get_args(annotation) if argument is not type(None)]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        fields = [f'"{name}" {_type(inner)}' for name, inner in get_type_hints(annotation).items()]
        return f"STRUCT({', '.join(fields)})"
    if annotation in _SQL:
        return _SQL[annotation]
    return f"{_type(arguments[0])}[]" if getattr(annotation, "__origin__", None) is list else _type(arguments[0])
