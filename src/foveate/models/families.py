"""The model families that work, as a table: what differs between them and nothing else.

Covers what an architecture in ``config.json`` means to Foveate. Does not cover the processors' arithmetic
(:mod:`foveate.models.sizing`) nor anything a checkpoint may choose for itself (chat template, sizes, token ids): that
is read from its files.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from foveate.core.errors import StartupError
from foveate.models.sizing import (
    CropSizing,
    PatchSizing,
    Sizing,
    WholePatchSizing,
)
from foveate.models.tiling import AnyResolutionSizing, GridSizing, SquareSizing, TileSizing

TRANSFORMERS = "transformers>=5.19,<5.20"
"""The releases whose model code the table is tested with, as one writes them to pip."""


class Family(msgspec.Struct, frozen=True):
    """One row of the table.

    ``sizing`` knows what a picture of a given size becomes. ``inputs`` are the vision tower's arguments among the
    processor's outputs. ``wrap`` surrounds a picture's token where no chat template says how. ``stacked`` tells that
    the vision tower's result is one tensor [tiles, rows, hidden], and that the language model wants three dimensions
    back. ``attends_within_pictures`` tells that a picture's tokens see each other in both directions, so that a prefill
    chunk must not end inside a picture. ``takes_given`` tells that embeddings which a client computed itself say all that the prompt needs.
    """

    name: str
    title: str
    sizing: type[Sizing]
    inputs: tuple[str, ...]
    wrap: tuple[str, str] = ("", "")
    stacked: bool = False
    attends_within_pictures: bool = False
    takes_given: bool = False


_PIXELS = ("pixel_values",)
_GRID = ("pixel_values", "image_grid_thw")
_MASK = ("pixel_values", "pixel_attention_mask")
_SIZES = ("pixel_values", "image_sizes")
_QWEN_WRAP = ("<|vision_start|>", "<|vision_end|>")

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("qwen2_vl", "Qwen2-VL", PatchSizing, _GRID, wrap=_QWEN_WRAP, takes_given=True),
        Family("qwen2_5_vl", "Qwen2.5-VL", PatchSizing, _GRID, wrap=_QWEN_WRAP, takes_given=True),
        Family("qwen3_vl", "Qwen3-VL", PatchSizing, _GRID, wrap=_QWEN_WRAP, takes_given=True),
        Family("llava", "LLaVA-1.5", CropSizing, _PIXELS, takes_given=True),
        Family("llava_next", "LLaVA-NeXT", AnyResolutionSizing, _SIZES, takes_given=True),
        Family(
            "llava_onevision", "LLaVA-OneVision", AnyResolutionSizing, (*_SIZES, "batch_num_images"), takes_given=True
        ),
        Family("internvl", "InternVL", TileSizing, _PIXELS, stacked=True, takes_given=True),
        Family("gemma3", "Gemma 3", SquareSizing, _PIXELS, stacked=True, attends_within_pictures=True),
        Family("smolvlm", "SmolVLM", GridSizing, _MASK, stacked=True),
        Family("idefics3", "Idefics3", GridSizing, _MASK, stacked=True),
        Family("pixtral", "Pixtral", WholePatchSizing, _SIZES),
        Family("mistral3", "Mistral 3", WholePatchSizing, _SIZES),
    )
}


def supported_families() -> tuple[str, ...]:
    """Return the titles of the families that work, as people write them."""
    return tuple(family.title for family in FAMILIES.values())


def family_of(config: Mapping[str, Any], model: str) -> Family:
    """Return the family of a checkpoint from its ``config.json``.

    Pixtral is the LLaVA class with a Pixtral tower. Raises StartupError, naming the architecture and the families that
    work.
    """
    kind = str(config.get("model_type", ""))
    vision = config.get("vision_config")
    if kind == "llava" and isinstance(vision, Mapping) and vision.get("model_type") == "pixtral":
        kind = "pixtral"
    family = FAMILIES.get(kind)
    if family is None:
        named = (
            f'is of the family "{kind}", which'
            if kind
            else "does not say its family (model_type in config.json), so it"
        )
        raise StartupError(
            f"The model {model} {named} is not supported; choose a model of one of: {', '.join(supported_families())}."
        )
    return family


def wrong_transformers(missing: str) -> StartupError:
    """Return the refusal of an installed transformers in which something is missing that every release above has."""
    return StartupError(
        f"The installed transformers {version('transformers')} does not suit this model: {missing} is missing; "
        f'install "{TRANSFORMERS}".'
    )


def picture_token_id(config: Any) -> int:
    """Return the id of the token whose rows are a picture's embeddings; configurations name it in two ways."""
    found = getattr(config, "image_token_id", None)
    return int(config.image_token_index if found is None else found)
