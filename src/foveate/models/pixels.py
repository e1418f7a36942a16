"""Pixels for an engine that has a picture processor of its own.

A picture is resized here as that processor would resize it, so that it finds nothing left to resize: it runs on one thread, and media
workers are many. What follows (tiles, normalisation) is the engine's. Does not cover families whose embeddings every engine takes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from foveate.core.errors import ImageShapeRefused
from foveate.core.media import ImageOptions
from foveate.models.families import Family, picture_token_id
from foveate.models.port import ProcessedPicture
from foveate.models.resizing import resizing
from foveate.models.sizing import FLOAT_BYTES

VALUES: Final = "values"
"""In a picture's ``meta``: how many values the processor makes of it (of ``pixel_values``), for the engine to compare."""
LONGEST_EDGE: Final = "longest_edge"
"""In a picture's ``meta``: what the engine's processor is to be told, where a request asked for less than the model's own."""


class TransformersPixelProcessor:
    """:class:`foveate.models.port.PictureProcessor` whose only array is ``pixels``, uint8 [height, width, 3]."""

    def __init__(self, family: Family, processor: Any, config: Any, processor_version: str) -> None:
        self.processor_version = processor_version
        self._image = processor.image_processor
        self._sizing = family.sizing(processor)
        self._resizing = resizing(family, self._sizing)
        self._picture_token: str = processor.tokenizer.convert_ids_to_tokens(picture_token_id(config))

    def process(self, pixels: np.ndarray, options: ImageOptions) -> ProcessedPicture:
        """Resize ``pixels`` (uint8, [height, width, 3], RGB, upright). Raises ImageShapeRefused as the whole processor would."""
        height, width = pixels.shape[:2]
        options = self._sizing.options(options)
        cost = self._sizing.cost(width, height, options)
        replacement = self._resizing.replacement(width, height, options)
        rows = replacement.count(self._picture_token)
        if rows != cost.rows:
            raise ImageShapeRefused(detail=f"{width}x{height}: {rows} tokens in the prompt, {cost.rows} rows")
        meta = {VALUES: [cost.tensors[0] // FLOAT_BYTES]}
        edge = self._resizing.longest_edge(options)
        if edge:
            meta[LONGEST_EDGE] = [edge]
        resized = self._resized(pixels, self._resizing.steps(width, height, options))
        return ProcessedPicture(replacement=replacement, rows=rows, arrays={"pixels": resized}, meta=meta)

    @torch.inference_mode()
    def _resized(self, pixels: np.ndarray, steps: tuple[tuple[int, int], ...]) -> np.ndarray:
        from transformers.image_processing_backends import TorchvisionBackend
        from transformers.image_utils import SizeDict

        picture = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]
        for height, width in steps:
            # Not the processor's own method, which some families make compute the size anew.
            picture = TorchvisionBackend.resize(
                self._image, picture, SizeDict(height=height, width=width), resample=self._image.resample
            )
        return np.ascontiguousarray(picture[0].numpy().transpose(1, 2, 0))
