"""What is known of a vision-language model: prompt, processor, vision tower, language model, versions.

Importing the package imports neither torch nor transformers; each loader below does so when it is called. Nothing here
knows of HTTP, processes or the arena.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.models.families import supported_families
    from foveate.models.files import ModelFiles, resolve_model
    from foveate.models.loading import load_picture_processor, load_prompt_side, load_vision_and_language

__all__ = [
    "ModelFiles",
    "load_picture_processor",
    "load_prompt_side",
    "load_vision_and_language",
    "resolve_model",
    "supported_families",
]


def __getattr__(name: str) -> Any:
    if name == "supported_families":
        from foveate.models.families import supported_families

        return supported_families
    if name in ("ModelFiles", "resolve_model"):
        from foveate.models import files

        return getattr(files, name)
    if name in __all__:
        from foveate.models import loading

        return getattr(loading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
