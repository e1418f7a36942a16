"""What a process that forks workers should have imported, so that a worker starts without importing anything large."""

from __future__ import annotations

import importlib.util

ALWAYS = (
    "torch",
    "transformers",
    "transformers.models.auto.processing_auto",
    "transformers.models.auto.modeling_auto",
    "foveate.models.loading",
    "foveate.models.picture",
    "foveate.models.tower",
    "foveate.models.language",
)


def preload_modules(model_type: str) -> tuple[str, ...]:
    """Return the modules to import for a model whose configuration says ``model_type``.

    transformers imports a family's code when it is first used; its modules are named after the family. A family that
    keeps its processor elsewhere starts a little later, nothing more.
    """
    package = f"transformers.models.{model_type}"
    own = tuple(f"{package}.{kind}_{model_type}" for kind in ("modeling", "processing", "image_processing"))
    return (*ALWAYS, *(name for name in own if _exists(name)))


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
