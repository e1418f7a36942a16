"""From a model's name to its files on this machine.

A name is nothing (the shipped demonstration model), a local directory or a hub id. Of the files only ``config.json`` is read here; what
they hold is loaded in :mod:`foveate.models.loading`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from foveate.core.errors import StartupError
from foveate.models.families import family_of

DEMO_NAME = "foveate-demo"
DEMO_DIRECTORY = Path(__file__).parent / "demo"
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
_NAME_SHOWN_MAX = 200
"""Characters; a hub id has 96 at most (huggingface_hub's validation)."""


class ModelFiles(msgspec.Struct, frozen=True):
    """A model on this machine:

    the name it is served under, its directory, its family (``model_type``, or ``pixtral``).
    """

    name: str
    directory: str
    family: str


def resolve_model(name: str | None, *, revision: str | None = None) -> ModelFiles:
    """Find a model's files; a hub id is downloaded, or taken from the local hub cache when offline.

    Raises StartupError when there is no such model, when it is not one, or when its family is not supported.
    """
    if name is None:
        directory, name = DEMO_DIRECTORY, DEMO_NAME
    elif (found := _directory(name)) is not None:
        directory = found
    elif len(name) > _NAME_SHOWN_MAX:
        raise StartupError(f"{name[:_NAME_SHOWN_MAX]!r}… is neither a directory nor a hub id like owner/model.")
    elif name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise StartupError(f"There is no directory {name}; give a local model directory or a hub id like owner/model.")
    else:
        directory = _download(name, revision)
    return ModelFiles(name, str(directory), family_of(read_config(directory, name), name).name)


def _directory(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path.resolve() if path.is_dir() else None
    except (OSError, RuntimeError):  # A name too long for any file; the home of nobody.
        return None


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(_HUB_FILES)))
    except HFValidationError as error:
        raise StartupError(f"{name!r} is neither a directory nor a hub id like owner/model.") from error
    except GatedRepoError as error:
        raise StartupError(f"The hub does not give out {name}: accept its licence there and set HF_TOKEN.") from error
    except RevisionNotFoundError as error:
        raise StartupError(f"The hub's model {name} has no revision {revision!r}.") from error
    except RepositoryNotFoundError as error:
        raise StartupError(
            f"There is no model {name} on the hub and no directory of that name; check the spelling."
        ) from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise StartupError(
            f"The model {name} is not on this machine and the hub cannot be reached; "
            "connect, unset HF_HUB_OFFLINE or give a directory.",
            detail=str(error),
        ) from error


def read_config(directory: Path, name: str) -> dict[str, Any]:
    """Return the model's ``config.json``. Raises StartupError, which calls the model ``name``."""
    try:
        config: dict[str, Any] = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise StartupError(
            f"{name} is not a model: its config.json is missing or damaged.", detail=str(error)
        ) from error
    return config
