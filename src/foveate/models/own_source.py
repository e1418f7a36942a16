"""Where an operator's own vision encoder is from: its class, looked at before anything heavy is loaded, and the hash of its source.

The port is :class:`foveate.models.own_encoder.VisionEncoder`. Imports neither torch nor transformers, unless the operator's module does.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from foveate.core.errors import StartupError

_CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    "__init__": ("model_dir",),
    "grid": ("width", "height"),
    "process": ("pixels",),
    "load": ("device", "dtype"),
    "encode": ("inputs",),
}
"""What must be there, and what it is called with, by position."""
_PAGE: Final = "docs/encoder.md"


def find_class(spec: str) -> type[Any]:
    """Import ``package.module:Class`` and check that it can be called as the port says. Raises StartupError that names what is missing."""
    module, _, name = spec.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # Foreign code raises whatever it comes upon.
        raise StartupError(
            f"The encoder {spec} cannot be imported: {_told(error)}. Give package.module:Class, from PYTHONPATH.",
            detail=repr(error),
        ) from error
    if not inspect.isclass(found):
        raise StartupError(f"The encoder {spec} is missing: there is no class {name} in {module}.")
    missing = [part for part in _CALLS if not callable(getattr(found, part, None))]
    if missing:
        raise StartupError(f"The encoder {spec} lacks {', '.join(map(_signature, missing))} ({_PAGE}).")
    for part in _CALLS:
        _check_call(found, part, spec)
    return found


def source_of(spec: str) -> str:
    """Return the hexadecimal hash of the encoder's module and, if that is in a package, of all Python files in the package's directory.

    Taken once in a process: what is imported does not change with its file. Raises StartupError.
    """
    return _source(spec.partition(":")[0])


def check_source(spec: str, expected: str) -> None:
    """Raise StartupError where a process finds another source than the server started with (``expected``)."""
    if source_of(spec) != expected:
        raise StartupError(
            f"The source of the encoder {spec} is not what the server started with: start again, or name the new one otherwise ({_PAGE})."
        )


def hashes(files: Iterable[Any]) -> list[str]:
    """Return the hexadecimal hashes of files' bytes, in their order. Raises StartupError."""
    found = []
    for file in files:
        try:
            found.append(blake3(max_threads=blake3.AUTO).update_mmap(str(file)).hexdigest())
        except OSError as error:
            raise StartupError(f"The encoder's file {file} cannot be read: {error.strerror or error}.") from error
    return found


def _check_call(found: type[Any], part: str, spec: str) -> None:
    static = inspect.getattr_static(found, part)
    instance = () if isinstance(static, classmethod | staticmethod) else (None,)
    try:
        inspect.signature(getattr(found, part)).bind(*instance, *_CALLS[part])
    except TypeError as error:
        raise StartupError(f"The encoder {spec} must have {_signature(part)} ({error}; {_PAGE}).") from error
    if inspect.iscoroutinefunction(getattr(found, part)):
        raise StartupError(f"The encoder {spec} cannot be used: its {part} is async, and must not be ({_PAGE}).")


def _signature(part: str) -> str:
    return f"{part}(self, {', '.join(_CALLS[part])})"


@lru_cache(64)
def _source(name: str) -> str:
    module = importlib.import_module(name)
    file = Path(module.__file__ or "")
    if not file.is_file():
        raise StartupError(f"The encoder's module {name} is no file, so nothing tells its version.")
    files = {file, *(file.parent.rglob("*.py") if module.__package__ else ())}
    hasher = blake3()
    for path in sorted(files):
        hasher.update(f"{path.relative_to(file.parent)}\0{blake3(path.read_bytes()).hexdigest()}\n".encode())
    return hasher.hexdigest()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
