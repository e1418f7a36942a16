"""Where the encoder cache outlives its process, if it does."""

from __future__ import annotations

from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path

from foveate import __version__
from foveate.caches.keep_directory import KeepDirectory
from foveate.settings import Settings


def keep_directory(settings: Settings, scope: AsyncExitStack) -> KeepDirectory | None:
    """Open and lock it. Raises StartupError when it is not ours alone."""
    cache = settings.cache
    if cache.encoder_keep_dir is None:
        return None
    keep = KeepDirectory(
        Path(cache.encoder_keep_dir),
        bytes_max=cache.encoder_keep_bytes_max,
        seconds_max=cache.encoder_keep_seconds_max,
        made_by=f"foveate {__version__}, torch {version('torch')}, {settings.model.device}",
    )
    scope.callback(keep.close)
    return keep
