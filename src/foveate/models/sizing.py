"""What a picture of a given size costs a model, computed without the picture.

One class for each kind of image processor; those that make tiles are in :mod:`foveate.models.tiling`. All three
questions about a request's picture options are answered in one place: which of them matter (:meth:`Sizing.options`),
what the image processor is told (:meth:`Sizing.arguments`) and what comes out (:meth:`Sizing.cost`); the prompt side
and the picture processor ask the same object, so they cannot disagree.

The formulas are transformers' own wherever it exposes them; tests compare each with the real processor's output.
Does not cover video, nor processors whose resizing a checkpoint has switched off (``do_resize: false``), which are
refused when loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from foveate.core.errors import ImageShapeRefused
from foveate.core.media import ImageOptions
from foveate.models.asked import Takes

FLOAT_BYTES = 4
INDEX_BYTES = 8
CHANNELS = 3
RATIO_MAX = 200
"""Longest side over shortest.

Qwen's processors refuse more; others would inflate such a picture to gigabytes before cropping it.
"""


class Cost(msgspec.Struct, frozen=True):
    """``tokens``:

    prompt tokens that stand for the picture; ``rows``: those that carry an embedding; ``tensors``: bytes of each input.
    """

    tokens: int
    rows: int
    tensors: tuple[int, ...]

    @property
    def input_bytes(self) -> int:
        """Bytes of all inputs when each begins at a multiple of 64."""
        return sum(-(-size // 64) * 64 for size in self.tensors)


class Sizing(Protocol):
    """Answers for one loaded processor. ``processor`` is a transformers processor."""

    def __init__(self, processor: Any) -> None: ...

    def takes(self) -> Takes:
        """Return what a request may ask of the processor."""
        ...

    def options(self, options: ImageOptions) -> ImageOptions:
        """Return ``options`` reduced to what makes a difference here, equal results having equal options."""
        ...

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        """Return the keyword arguments of the image processor that bring about ``options`` (already reduced)."""
        ...

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        """Return the exact cost of a picture, ``options`` already reduced. Raises ImageShapeRefused."""
        ...


def refuse_ratio(width: int, height: int) -> None:
    """Raise ImageShapeRefused when one side is more than :data:`RATIO_MAX` times the other."""
    if max(width, height) > RATIO_MAX * min(width, height):
        raise ImageShapeRefused(
            f"The model cannot take a picture whose longer side is more than {RATIO_MAX} times its shorter side.",
            detail=f"{width}x{height}",
            limit_name="side_ratio",
            limit=RATIO_MAX,
            actual=max(width, height) / min(width, height),
        )


def tile_bytes(height: int, width: int) -> int:
    """Bytes of one float32 picture or tile."""
    return CHANNELS * height * width * FLOAT_BYTES


def shape_only(height: int, width: int) -> Any:
    """Return a picture tensor [1, 3, height, width] that has a shape and no pixels, for transformers to measure."""
    import torch

    return torch.empty(1, dtype=torch.uint8).expand(1, CHANNELS, height, width)


def image_arguments(processor: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``told`` over the arguments that a processor itself always gives its image processor."""
    # Where the defaults are kept differs between releases of transformers; this method knows of them in each.
    merged = processor._merge_kwargs(
        processor.valid_processor_kwargs,
        tokenizer_init_kwargs=processor.tokenizer.init_kwargs,
        images_kwargs=dict(told),
    )
    arguments: dict[str, Any] = merged["images_kwargs"]
    return arguments


class PatchSizing:
    """Qwen's processors:

    any size, in patches of merge x patch pixels. ``pixels_max`` lowers the most pixels of the resized picture, ``pixels_min`` sets
    the fewest.
    """

    def __init__(self, processor: Any) -> None:
        self._image = processor.image_processor
        self._low: int = self._image.size["shortest_edge"]
        self._high: int = self._image.size["longest_edge"]
        self._merge: int = self._image.merge_size**2
        self._patch_bytes = tile_bytes(self._image.patch_size, self._image.patch_size) * int(
            self._image.temporal_patch_size
        )

    def takes(self) -> Takes:
        return Takes(self._high, pixels_min=True, edges="pixels")

    def options(self, options: ImageOptions) -> ImageOptions:
        high = options.pixels_max if 0 < options.pixels_max < self._high else 0
        most = high or self._high
        low = min(options.pixels_min, most)
        return ImageOptions(pixels_max=high, pixels_min=0 if low == min(self._low, most) else low)

    def _bounds(self, options: ImageOptions) -> tuple[int, int]:
        high = options.pixels_max or self._high
        return min(options.pixels_min or self._low, high), high

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        if not options.pixels_max and not options.pixels_min:
            return {}
        low, high = self._bounds(options)
        return {"size": {"shortest_edge": low, "longest_edge": high}}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        refuse_ratio(width, height)
        low, high = self._bounds(options)
        patches = int(self._image.get_number_of_image_patches(height, width, {"min_pixels": low, "max_pixels": high}))
        rows = patches // self._merge
        return Cost(rows, rows, (patches * self._patch_bytes, 3 * INDEX_BYTES))


class CropSizing:
    """LLaVA-1.5: every picture becomes one square of a fixed size, so no option makes a difference."""

    def __init__(self, processor: Any) -> None:
        image = processor.image_processor
        crop = image.crop_size if image.do_center_crop else image.size
        self._height, self._width = int(crop["height"]), int(crop["width"])
        patches = (self._height // processor.patch_size) * (self._width // processor.patch_size)
        self._rows: int = patches + processor.num_additional_image_tokens
        if processor.vision_feature_select_strategy == "default":
            self._rows -= 1

    def takes(self) -> Takes:
        return Takes()

    def options(self, options: ImageOptions) -> ImageOptions:
        return ImageOptions()

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        return {}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        refuse_ratio(width, height)
        return Cost(self._rows, self._rows, (tile_bytes(self._height, self._width),))


class WholePatchSizing:
    """Pixtral and Mistral 3: any size up to a longest side, in whole patches, a break token after each row.

    ``pixels_max`` lowers the longest side to at most its square root.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._patch: int = processor.patch_size * processor.spatial_merge_size
        self._high: int = processor.image_processor.size["longest_edge"]

    def takes(self) -> Takes:
        return Takes(self._high**2, edges="side")

    def options(self, options: ImageOptions) -> ImageOptions:
        side = max(math.isqrt(options.pixels_max), self._patch)
        return ImageOptions(pixels_max=side * side if options.pixels_max and side < self._high else 0)

    def _side(self, options: ImageOptions) -> int:
        return math.isqrt(options.pixels_max) or self._high

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        return {"size": {"longest_edge": self._side(options)}} if options.pixels_max else {}

    def _resized(self, width: int, height: int, options: ImageOptions) -> tuple[int, int]:
        from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size

        found: tuple[int, int] = get_resize_output_image_size(
            shape_only(height, width)[0],
            size=self._side(options),
            patch_size=self._patch,
            input_data_format="channels_first",
        )
        return found

    def steps(self, width: int, height: int, options: ImageOptions) -> tuple[tuple[int, int], ...]:
        """See :class:`foveate.models.resizing.Resizing`. A side that is rounded up beyond the longest would be resized once more."""
        found = self._resized(width, height, options)
        return (found,) if max(found) <= self._high else ()

    def replacement(self, width: int, height: int, options: ImageOptions) -> str:
        """See :class:`foveate.models.resizing.Resizing`."""
        sizes = {"image_sizes": [self._resized(width, height, options)]}
        return str(self._processor.replace_image_token(sizes, 0))

    def longest_edge(self, options: ImageOptions) -> int:
        """See :class:`foveate.models.resizing.Resizing`: smaller pictures stay as they are."""
        return 0

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        found = self._resized(width, height, options)
        down, across = found[0] // self._patch, found[1] // self._patch
        if down <= 0 or across <= 0:
            # The longer side becomes ``side`` pixels at most, and the shorter one must keep one.
            side = self._side(options)
            raise ImageShapeRefused(
                f"The model cannot take a picture whose longer side is more than {side} times its shorter side.",
                detail=f"{width}x{height}: the shorter side becomes zero pixels",
                limit_name="side_ratio",
                limit=side,
                actual=max(width, height) / min(width, height),
            )
        return Cost(down * (across + 1), down * across, (tile_bytes(*found), 2 * INDEX_BYTES))
