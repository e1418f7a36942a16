"""Reads a YAML or JSON file strictly: a key that stands twice in one mapping is refused, where YAML's own reader lets the last win."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import yaml

from foveate.core.errors import StartupError

FILE_BYTES_MAX: Final = 16 * 2**20
_MERGE: Final = "tag:yaml.org,2002:merge"


class _Twice(yaml.YAMLError):
    def __init__(self, key: str, line: int) -> None:
        super().__init__(f"{key!r} stands twice, the second time in line {line}")
        self.key, self.line = key, line


class _Strict(yaml.SafeLoader):
    # Judged when composed: merge keys (<<) are not mixed in yet, and those may be stated again.
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in seen:
                    raise _Twice(key.value, key.start_mark.line + 1)
                seen.add((key.tag, key.value))
        return node


def read_file(path: str, what: str, *, quotable: Collection[str] | None = None) -> object:
    """Return what a file holds, None if nothing. ``what`` names it in errors; ``quotable``: the only keys that an error may show.

    Raises StartupError that names the line and quotes nothing else of the file: it may hold secrets.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise StartupError(f"{what} cannot be read: {error.strerror}.") from error
    if len(data) > FILE_BYTES_MAX:
        raise StartupError(f"{what} has more than {FILE_BYTES_MAX} bytes.")
    try:
        return yaml.load(data, Loader=_Strict)  # a SafeLoader
    except _Twice as error:
        key = repr(error.key) if quotable is None or error.key in quotable else "a key"
        raise StartupError(f"{what} has {key} twice, the second time in line {error.line}. Keep one of them.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Not the library's text, which quotes the line.
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise StartupError(f"{what} cannot be read: it is neither YAML nor JSON{line}.") from None
