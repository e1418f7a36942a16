"""Command-line flags made from the declared settings, so that none is written twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from foveate.settings import Declared, declared


def with_settings(command: Callable[..., None], *own: inspect.Parameter) -> Callable[..., None]:
    """Return a typer command with one flag for each setting, ``--config``, and ``own`` options, which it is called with by name.

    ``command`` is called with the settings given as flags, by dotted key, and the settings file. Values stay text: the settings' own types
    and bounds judge them, so that a wrong flag and a wrong file entry read alike.
    """
    entries = {entry.key.replace(".", "__"): entry for entry in declared()}

    def run(**given: Any) -> None:
        config = given.pop("config")
        asked = {parameter.name: given.pop(parameter.name) for parameter in own}
        command({entries[name].key: value for name, value in given.items() if value is not None}, config, **asked)

    parameters = [*own, *(_parameter(name, entry) for name, entry in entries.items())]
    parameters.append(
        inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option("--config", metavar="FILE", help="YAML file of settings.")],
        )
    )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    return run


def _parameter(name: str, entry: Declared) -> inspect.Parameter:
    annotation: Any
    if entry.info.annotation is bool:
        flag = f"{entry.flag}/--no-{entry.flag.removeprefix('--')}"
        option = typer.Option(flag, help=entry.info.description, rich_help_panel=entry.section)
        annotation = Annotated[bool | None, option]
    else:
        option = typer.Option(
            entry.flag, help=_help(entry), metavar=_metavar(entry), rich_help_panel=entry.section, show_default=False
        )
        annotation = Annotated[list[str] | None, option] if entry.repeats else Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(entry: Declared) -> str:
    kinds = {int: "N", float: "X", str: "TEXT"}
    return kinds.get(entry.info.annotation, "TEXT")  # type: ignore[arg-type]


def _help(entry: Declared) -> str:
    default = entry.info.default
    if default is None or default in ("", (), {}):
        return entry.info.description or ""
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{entry.info.description} [default: {shown}]"
