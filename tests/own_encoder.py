"""The worked example of docs/encoder.md, imported by real workers; the page's code is this file's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

CELL = 32
"""Pixels of a side of the square that one embedding stands for."""


class MeanColours:
    """Embeds each square of a picture as its mean colour, repeated to the model's width. Its language model was not trained for it."""

    version = "mean-colours-1"

    def __init__(self, model_dir: str) -> None:
        config = json.loads((Path(model_dir) / "config.json").read_text())
        self._hidden = int((config.get("text_config") or config)["hidden_size"])

    def grid(self, width: int, height: int) -> tuple[int, int]:
        if min(width, height) < CELL:
            raise ValueError("smaller than one cell")
        return height // CELL, width // CELL

    def process(self, pixels: np.ndarray) -> Mapping[str, np.ndarray]:
        rows, columns = self.grid(pixels.shape[1], pixels.shape[0])
        cells = pixels[: rows * CELL, : columns * CELL].reshape(rows, CELL, columns, CELL, 3)
        return {"means": cells.mean((1, 3), dtype=np.float32).reshape(rows * columns, 3) / 255}

    def load(self, device: str, dtype: str) -> None:
        self._spread = torch.linspace(-1, 1, self._hidden, device=device)

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        means = inputs["means"].to(self._spread.device)
        repeated = means.repeat(1, -(-self._hidden // 3))[:, : self._hidden]
        return repeated * self._spread
