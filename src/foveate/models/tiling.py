"""What a picture costs the models that cut it into tiles. See :mod:`foveate.models.sizing`."""

from __future__ import annotations

import math
from typing import Any

from foveate.core.errors import ImageShapeRefused
from foveate.core.media import ImageOptions
from foveate.models.asked import Takes
from foveate.models.sizing import INDEX_BYTES, Cost, image_arguments, shape_only, tile_bytes

SQUARE_PIXELS_MAX = 1 << 28
"""Pixels of the square that LLaVA-OneVision pads a picture to when a prompt has several (0.8 GB as bytes)."""


class AnyResolutionSizing:
    """LLaVA-NeXT and LLaVA-OneVision: the whole picture and tiles of the best grid.

    The grids are part of the model's configuration too, so ``pixels_max`` cannot change them and is cleared.
    LLaVA-OneVision alone gives each picture of a prompt with several a single square, without tiles: ``several`` stays
    for it.
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

    def takes(self) -> Takes:
        return Takes()

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
                limit_name="side_pixels",
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

    def takes(self) -> Takes:
        return Takes(self._high**2, edges="side")

    def options(self, options: ImageOptions) -> ImageOptions:
        side = self._side(options)
        return ImageOptions(pixels_max=side * side if options.pixels_max and side < self._high else 0)

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        return {"size": {"longest_edge": self._side(options)}} if options.pixels_max else {}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        rows, columns = self._grid(width, height, options)
        tokens = self._tokens.get((rows, columns))
        if tokens is None:
            # Newlines may merge in the tokenizer, so the text is counted rather than computed. One entry a grid.
            text = self._text(rows, columns)
            tokens = len(self._processor.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False))
            self._tokens[rows, columns] = tokens
        tiles = rows * columns + 1
        mask = tiles * self._tile * self._tile * INDEX_BYTES
        pixels = tiles * tile_bytes(self._tile, self._tile)
        return Cost(tokens, tiles * int(self._processor.image_seq_len), (pixels, mask))

    def _text(self, rows: int, columns: int) -> str:
        return str(self._processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0))

    def steps(self, width: int, height: int, options: ImageOptions) -> tuple[tuple[int, int], ...]:
        """See :class:`foveate.models.resizing.Resizing`. Only where the longest edge is whole tiles does a second pass change nothing."""
        edge = self._side(options) if options.pixels_max else self._high
        if not self._image.do_image_splitting or edge % self._tile:
            return ()
        first = self._first(width, height, edge)
        return first, self._whole_tiles(*first)

    def replacement(self, width: int, height: int, options: ImageOptions) -> str:
        """See :class:`foveate.models.resizing.Resizing`."""
        return self._text(*self._grid(width, height, options))

    def longest_edge(self, options: ImageOptions) -> int:
        """See :class:`foveate.models.resizing.Resizing`: smaller pictures are brought to it, too."""
        return self._side(options) if options.pixels_max else 0

    def _first(self, width: int, height: int, edge: int) -> tuple[int, int]:
        from transformers.models.idefics3.image_processing_idefics3 import get_resize_output_image_size

        found: tuple[int, int] = get_resize_output_image_size(shape_only(height, width), edge)
        return found

    def _whole_tiles(self, height: int, width: int) -> tuple[int, int]:
        ratio = width / height
        if width >= height:
            width = math.ceil(width / self._tile) * self._tile
            height = int(width / ratio)
        else:
            height = math.ceil(height / self._tile) * self._tile
            width = int(height * ratio)
        return math.ceil(height / self._tile) * self._tile, math.ceil(width / self._tile) * self._tile

    def _grid(self, width: int, height: int, options: ImageOptions) -> tuple[int, int]:
        """Return rows and columns of tiles, 0 and 0 for a picture that is one tile.

        Follows ``resize``, ``resize_for_vision_encoder`` and ``split_images`` of transformers' Idefics3 processor; its
        own ``get_number_of_image_patches`` skips the second step.
        """
        if not self._image.do_image_splitting:
            return 0, 0
        edge = self._side(options) if options.pixels_max else self._high
        rows, columns = (side // self._tile for side in self._whole_tiles(*self._first(width, height, edge)))
        if rows * columns == 0:
            raise ImageShapeRefused(detail=f"{width}x{height} becomes no tile")
        return (0, 0) if rows * columns == 1 else (rows, columns)


class TileSizing:
    """InternVL:

    up to ``max_patches`` tiles and, when there is more than one, a thumbnail. ``pixels_max`` lowers the number of
    tiles.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._image = processor.image_processor
        self._height, self._width = int(self._image.size["height"]), int(self._image.size["width"])
        self._fixed = image_arguments(processor, {})
        self._high: int = self._image.max_patches

    def _tiles_max(self, options: ImageOptions) -> int:
        return max(1, options.pixels_max // (self._height * self._width))

    def takes(self) -> Takes:
        return Takes(self._high * self._height * self._width)

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


class SquareSizing:
    """Gemma 3: every picture becomes one square of a fixed size, so no option makes a difference.

    transformers' processor turns pan and scan off whatever the checkpoint's image processor says; it is not covered.
    """

    def __init__(self, processor: Any) -> None:
        size = processor.image_processor.size
        self._size = int(size["height"]), int(size["width"])
        self._text = str(processor.replace_image_token({"num_crops": [0]}, 0))
        tokens = len(processor.tokenizer.backend_tokenizer.encode(self._text, add_special_tokens=False))
        self._cost = Cost(tokens, int(processor.image_seq_length), (tile_bytes(*self._size),))

    def steps(self, width: int, height: int, options: ImageOptions) -> tuple[tuple[int, int], ...]:
        """See :class:`foveate.models.resizing.Resizing`."""
        return (self._size,)

    def replacement(self, width: int, height: int, options: ImageOptions) -> str:
        """See :class:`foveate.models.resizing.Resizing`."""
        return self._text

    def longest_edge(self, options: ImageOptions) -> int:
        """See :class:`foveate.models.resizing.Resizing`."""
        return 0

    def takes(self) -> Takes:
        return Takes()

    def options(self, options: ImageOptions) -> ImageOptions:
        return ImageOptions()

    def arguments(self, options: ImageOptions) -> dict[str, Any]:
        return {}

    def cost(self, width: int, height: int, options: ImageOptions) -> Cost:
        return self._cost
