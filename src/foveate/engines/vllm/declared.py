"""What the installed vLLM declares, read from its source: importing it takes ten seconds, and a misspelt name need not wait for that.

Nothing is known where the source does not read as expected, and of parsers where plug-ins may add some. The engine's process, which imports
vLLM, has the last word on all of it.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from foveate.core.errors import StartupError

_ARGUMENTS: Final = "engine/arg_utils.py"
_PLUGINS: Final = "vllm.general_plugins"
"""Entry points that vLLM runs when it starts. What those of others do, nobody can tell beforehand."""
_PARSERS: Final = {
    "tool_call_parser": ("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning_parser": ("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
}


def check_arguments(names: Collection[str]) -> None:
    """Raise StartupError for a name that is none of vLLM's arguments."""
    known = arguments() if names else frozenset()
    for name in sorted(names) if known else ():
        if name not in known:
            raise StartupError(f"vLLM has no argument {name} (setting vllm.args).{_nearest(name, known)}")


def check_parser(setting: str, name: str) -> None:
    """Raise StartupError where the setting ``vllm.<setting>`` names none of vLLM's parsers; the empty name is none."""
    others = any(not point.value.startswith("vllm.") for point in entry_points(group=_PLUGINS))
    known = parsers(setting) if name and not others else frozenset()
    if known and name not in known:
        raise StartupError(f"vLLM has no parser {name} (setting vllm.{setting}).{_nearest(name, known)}")


def arguments() -> frozenset[str]:
    """Return the fields of AsyncEngineArgs; none where they cannot be told."""
    return frozenset(
        field.target.id
        for found in _statements(_ARGUMENTS)
        if isinstance(found, ast.ClassDef) and found.name in ("EngineArgs", "AsyncEngineArgs")
        for field in found.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )


def parsers(setting: str) -> frozenset[str]:
    """Return the names that ``vllm.<setting>`` may have; none where they cannot be told."""
    file, table = _PARSERS[setting]
    return frozenset(
        key.value
        for found in _statements(file)
        if isinstance(found, ast.Assign) and isinstance(found.value, ast.Dict)
        if any(isinstance(target, ast.Name) and target.id == table for target in found.targets)
        for key in found.value.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    )


def _statements(file: str) -> Iterator[ast.stmt]:
    """Yield the top-level statements of one of vLLM's modules; none where it cannot be read."""
    spec = find_spec("vllm")  # finds the package, and imports nothing
    for place in (spec.submodule_search_locations if spec is not None else None) or ():
        try:
            yield from ast.parse((Path(place) / file).read_bytes()).body
        except (OSError, SyntaxError):
            continue


def _nearest(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""
