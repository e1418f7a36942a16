"""What a picture of a given size costs a model, computed without the picture.

One class for each kind of image processor. All three questions about a request's picture options are answered in one place: which of
them matter (:meth:`Sizing.options`), what the image processor is told (:meth:`Sizing.arguments`) and what comes out
(:meth:`Sizing.cost`); the prompt side and the picture processor ask the same object, so they cannot disagree.

The formulas are transformers 5.19's own wherever it exposes them; tests compare each with the real processor's output. Does not cover
video, nor processors whose resizing a checkpoint has switched off (``do_resize: false``), which are refused when loaded.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import msgspec

from foveate.core.errors import ImageShapeRefused
from foveate.core.media import ImageOptions

FLOAT_BYTES = 4
INDEX_BYTES = 8
CHANNELS = 3
RATIO_MAX = 200
"""Longest side over shortest. Qwen's processors refuse more; others would inflate such a picture to gigabytes before cropping it."""
SQUARE_PIXELS_MAX = 1 << 28
"""Pixels of the square that LLaVA-OneVision pads a picture to when a prompt has several (0.8 GB as bytes)."""


class Cost(msgspec.Struct, frozen=True):
    """``tokens``: prompt tokens that stand for the picture; ``rows``: those that carry an embedding; ``tensors``: bytes of each input."""

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
            limit=RATIO_MAX,
            actual=max(width, height) / min(width, height),
        )


def tile_bytes(height: int, width: int) -> int:
    """Bytes of one float32 picture or tile."""
    return CHANNELS * height * width * FLOAT_BYTES


class PatchSizing:
    """Qwen's processors: any size, in patches of merge x patch pixels. ``pixels_max`` lowers the resized picture's pixels."""

    def __init__(self, processor: Any) -> None:
        self._image = processor.image_processor
        self._low: int = self._image.size["shortest_edge"]
        self._high: int = self._image.size["longest_edge"]
        self._merge: int = self._image.merge_size**2
        self._patch_bytes = tile_bytes(self._image.patch_size, self._image.patch_size) * int(
            self._image.temporal_patch_size
        )

    def options(self, options: ImageOptions) -> ImageOptions:
        return ImageOptions(pixels_max=options.pixels_max if 0 < options.pixels_max < self._high else 0)

    def _bounds(self, options: ImageOptions) -> tuple[int, int]:
        high = options.pixels_max or self._high
        return min(self._low, high), high

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        if not options.pixels_max:
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

    def options(self, options: ImageOptions) -> ImageOptions:
        return ImageOptions()

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        return {}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        refuse_ratio(width, height)
        return Cost(self._rows, self._rows, (tile_bytes(self._height, self._width),))


class AnyResolutionSizing:
    """LLaVA-NeXT and LLaVA-OneVision: the whole picture and tiles of the best grid.

    The grids are part of the model's configuration too, so ``pixels_max`` cannot change them and is cleared. LLaVA-OneVision alone gives
    each picture of a prompt with several a single square, without tiles: ``several`` stays for it.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._image = processor.image_processor
        self._onevision = hasattr(processor, "vision_aspect_ratio")
        size, crop = self._image.size, self._image.crop_size
        if crop and crop.height:
            self._tile = int(crop.height)
        else:
            self._tile = int(size.height or size.shortest_edge)
        shape = crop if self._image.do_center_crop else size
        self._height, self._width = int(shape.height or size.shortest_edge), int(shape.width or size.shortest_edge)

    def options(self, options: ImageOptions) -> ImageOptions:
        return ImageOptions(several=options.several and self._onevision)

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        return {}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        if options.several:
            return self._several(width, height)
        from transformers.image_processing_utils import select_best_resolution

        rows = int(self._processor._get_num_multimodal_tokens(image_sizes=[(height, width)]).num_image_tokens[0])
        if rows <= 0:
            raise ImageShapeRefused(detail=f"{width}x{height} becomes {rows} tokens")
        best = select_best_resolution((height, width), self._image.image_grid_pinpoints)
        tiles = 1 + math.ceil(best[0] / self._tile) * math.ceil(best[1] / self._tile)
        tensors = [tiles * tile_bytes(self._height, self._width), 2 * INDEX_BYTES]
        if self._onevision:
            tensors.append(INDEX_BYTES)
        return Cost(rows, rows, tuple(tensors))

    def _several(self, width: int, height: int) -> Cost:
        if max(width, height) ** 2 > SQUARE_PIXELS_MAX:
            raise ImageShapeRefused(
                "The model cannot take a picture of this length in a prompt with several pictures.",
                detail=f"{width}x{height} is padded to a square",
                limit=math.isqrt(SQUARE_PIXELS_MAX),
                actual=max(width, height),
            )
        rows = int(self._processor.num_image_tokens) + 1
        if self._processor.vision_feature_select_strategy == "default":
            rows -= 1
        return Cost(rows, rows, (tile_bytes(self._height, self._width), 2 * INDEX_BYTES, INDEX_BYTES))


class GridSizing:
    """Idefics3 and SmolVLM: a grid of square tiles and the whole picture, with row and column tokens between.

    ``pixels_max`` lowers the longest side, in whole tiles, to at most its square root; at one tile there is no grid.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._image = processor.image_processor
        self._tile: int = self._image.max_image_size["longest_edge"]
        self._high: int = self._image.size["longest_edge"]
        self._tokens: dict[tuple[int, int], int] = {}

    def _side(self, options: ImageOptions) -> int:
        return max(1, math.isqrt(options.pixels_max) // self._tile) * self._tile

    def options(self, options: ImageOptions) -> ImageOptions:
        side = self._side(options)
        return ImageOptions(pixels_max=side * side if options.pixels_max and side < self._high else 0)

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        return {"size": {"longest_edge": self._side(options)}} if options.pixels_max else {}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        tiles, rows, columns = self._image.get_number_of_image_patches(height, width, self.arguments(options))
        if tiles <= 0:
            raise ImageShapeRefused(detail=f"{width}x{height} becomes no tile")
        tokens = self._tokens.get((rows, columns))
        if tokens is None:
            # The replacement's newlines may merge in the tokenizer, so it is counted rather than computed. At most one entry a grid.
            text = self._processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
            tokens = len(self._processor.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False))
            self._tokens[rows, columns] = tokens
        mask = tiles * self._tile * self._tile * INDEX_BYTES
        return Cost(
            tokens, tiles * int(self._processor.image_seq_len), (tiles * tile_bytes(self._tile, self._tile), mask)
        )


class TileSizing:
    """InternVL: up to ``max_patches`` tiles and, when there is more than one, a thumbnail. ``pixels_max`` lowers the number of tiles."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._image = processor.image_processor
        self._height, self._width = int(self._image.size["height"]), int(self._image.size["width"])
        self._fixed = dict(processor.images_kwargs)
        self._high: int = self._image.max_patches

    def _tiles_max(self, options: ImageOptions) -> int:
        return max(1, options.pixels_max // (self._height * self._width))

    def options(self, options: ImageOptions) -> ImageOptions:
        tiles = self._tiles_max(options)
        return ImageOptions(
            pixels_max=tiles * self._height * self._width if options.pixels_max and tiles < self._high else 0
        )

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        if not options.pixels_max:
            return {}
        tiles = self._tiles_max(options)
        return {"max_patches": tiles, "min_patches": min(int(self._image.min_patches), tiles)}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        told = {**self._fixed, **self.arguments(options)}
        tiles = int(self._image.get_number_of_image_patches(height, width, told))
        rows = tiles * int(self._processor.image_seq_length)
        return Cost(rows + 2, rows, (tiles * tile_bytes(self._height, self._width),))


class PanAndScanSizing:
    """Gemma 3: one square of a fixed size and, when the checkpoint asks for pan and scan, crops of long pictures. No option matters."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        image = processor.image_processor
        self._image = image
        self._height, self._width = int(image.size["height"]), int(image.size["width"])
        told = {**processor.images_kwargs}
        names = (
            "do_pan_and_scan",
            "pan_and_scan_min_crop_size",
            "pan_and_scan_max_num_crops",
            "pan_and_scan_min_ratio_to_activate",
        )
        self._scan: dict[str, Any] = {name: told.get(name, getattr(image, name)) for name in names}
        self._tokens: dict[int, int] = {}

    def options(self, options: ImageOptions) -> ImageOptions:
        return ImageOptions()

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        return {}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        crops = self._crops(width, height)
        tokens = self._tokens.get(crops)
        if tokens is None:
            text = self._processor.replace_image_token({"num_crops": [crops]}, 0)
            tokens = len(self._processor.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False))
            self._tokens[crops] = tokens
        pictures = 1 + crops
        return Cost(
            tokens,
            pictures * int(self._processor.image_seq_length),
            (pictures * tile_bytes(self._height, self._width),),
        )

    def _crops(self, width: int, height: int) -> int:
        if not self._scan["do_pan_and_scan"]:
            return 0
        import torch

        # A picture without pixels: the crops are views, so the processor's own code can be asked for free.
        blank = torch.empty(1, dtype=torch.uint8).expand(1, CHANNELS, height, width)
        told = {name: value for name, value in self._scan.items() if name != "do_pan_and_scan"}
        return len(self._image.pan_and_scan_batched(blank, **told))


class WholePatchSizing:
    """Pixtral and Mistral 3: any size up to a longest side, in whole patches, a break token after each row.

    ``pixels_max`` lowers the longest side to at most its square root.
    """

    def __init__(self, processor: Any) -> None:
        self._patch: int = processor.patch_size * processor.spatial_merge_size
        self._high: int = processor.image_processor.size["longest_edge"]

    def options(self, options: ImageOptions) -> ImageOptions:
        side = max(math.isqrt(options.pixels_max), self._patch)
        return ImageOptions(pixels_max=side * side if options.pixels_max and side < self._high else 0)

    def _side(self, options: ImageOptions) -> int:
        return math.isqrt(options.pixels_max) or self._high

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        return {"size": {"longest_edge": self._side(options)}} if options.pixels_max else {}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        side = self._side(options)
        ratio = max(height / side, width / side)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        # As get_resize_output_image_size of transformers' Pixtral processor, which wants a picture to ask its size.
        down, across = (height - 1) // self._patch + 1, (width - 1) // self._patch + 1
        if down <= 0 or across <= 0:
            raise ImageShapeRefused(detail="the shorter side becomes zero pixels")
        pixels = tile_bytes(down * self._patch, across * self._patch)
        return Cost(down * (across + 1), down * across, (pixels, 2 * INDEX_BYTES))
