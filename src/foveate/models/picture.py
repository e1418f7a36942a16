"""Pixels to model inputs: one picture through a checkpoint's own image processor. No weights, no tokenizer call.

transformers' torchvision backend takes the picture as an unsigned-byte tensor, channels first and said to be so:
nothing is guessed from the shape, so pictures one pixel wide are safe, and the result is the same to the bit as for a
PIL image. Does not cover media decode.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from foveate.core.errors import ImageShapeRefused
from foveate.core.media import ImageOptions
from foveate.models.families import Family, picture_token_id
from foveate.models.port import ProcessedPicture
from foveate.models.sizing import image_arguments

LANGUAGE_MODEL_NEEDS = ("image_grid_thw",)
"""Processor outputs that the language model's positions depend on."""

_OPTION_SETS_MAX = 64


class TransformersPictureProcessor:
    """:class:`foveate.models.port.PictureProcessor` over a transformers processor."""

    def __init__(self, family: Family, processor: Any, config: Any, processor_version: str) -> None:
        self.processor_version = processor_version
        self._processor = processor
        self._sizing = family.sizing(processor)
        self._inputs = family.inputs
        self._picture_token: str = processor.tokenizer.convert_ids_to_tokens(picture_token_id(config))
        self._arguments = lru_cache(_OPTION_SETS_MAX)(self._arguments_anew)

    def process(self, pixels: np.ndarray, options: ImageOptions) -> ProcessedPicture:
        """Turn ``pixels`` (uint8, [height, width, 3], RGB, upright) into the vision tower's inputs.

        Arrays are float32 and int64, C-contiguous. Raises ImageShapeRefused when the processor cannot take the shape.
        """
        height, width = pixels.shape[:2]
        options = self._sizing.options(options)
        self._sizing.cost(width, height, options)
        picture = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        pictures = [picture]
        if options.several:
            # What becomes of each picture of several does not depend on the others: one pixel stands in for them.
            pictures.append(torch.zeros((3, 1, 1), dtype=torch.uint8))
        with torch.inference_mode():
            outputs, replacements = self._run(pictures, options)
        alone = {name: value[:1] for name, value in outputs.items()} if options.several else outputs
        arrays = {name: np.ascontiguousarray(torch.as_tensor(alone[name]).numpy()) for name in self._inputs}
        meta = {name: arrays[name].reshape(-1).tolist() for name in LANGUAGE_MODEL_NEEDS if name in arrays}
        rows = replacements[0].count(self._picture_token)
        return ProcessedPicture(replacement=replacements[0], rows=rows, arrays=arrays, meta=meta)

    def _run(self, pictures: list[torch.Tensor], options: ImageOptions) -> tuple[dict[str, Any], list[str]]:
        try:
            outputs, replacements = self._processor._process_images([pictures], **self._arguments(options))
        except (ValueError, ZeroDivisionError) as error:
            height, width = pictures[0].shape[1:]
            raise ImageShapeRefused(detail=f"{width}x{height}: {error}") from error
        return dict(outputs), replacements

    def _arguments_anew(self, options: ImageOptions) -> dict[str, Any]:
        arguments = image_arguments(self._processor, self._sizing.arguments(options))
        return {**arguments, "input_data_format": "channels_first", "return_tensors": "pt"}
