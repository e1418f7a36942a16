"""The example of docs/encoder.md, but wrong in another way for each of some sizes of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tests.own_encoder import CELL, MeanColours

PRICE, PROCESS, NO_ARRAY, RAISES, ROWS, WIDTH, DTYPE, NOT_FINITE, NO_TENSOR = (side * CELL for side in range(8, 17))
"""Sides of square pictures, in pixels, by what goes wrong with them."""


class Treacherous(MeanColours):
    version = "treacherous-1"

    def grid(self, width: int, height: int) -> Any:
        return "many" if width == PRICE else super().grid(width, height)

    def process(self, pixels: np.ndarray) -> Mapping[str, Any]:
        if pixels.shape[0] == PROCESS:
            raise RuntimeError("process")
        return {"means": [1, 2]} if pixels.shape[0] == NO_ARRAY else super().process(pixels)

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        right = super().encode(inputs)
        match int(len(right) ** 0.5) * CELL:
            case side if side == RAISES:
                raise RuntimeError("encode")
            case side if side == ROWS:
                return right[:-1]
            case side if side == WIDTH:
                return right[:, :-1]
            case side if side == DTYPE:
                return right.to(torch.int32)
            case side if side == NOT_FINITE:
                return right / 0
            case side if side == NO_TENSOR:
                return right.tolist()
        return right
