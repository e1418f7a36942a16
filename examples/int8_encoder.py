"""An encoder of one's own: Qwen2.5-VL's vision tower with its weights in int8, on smaller pictures.

    PYTHONPATH=. foveate serve --encoder examples.int8_encoder:Int8Encoder

The weights of its linear layers take a quarter of what float32 takes, and a picture becomes at most 64 tokens. It works with the model that
ships with Foveate and with other Qwen2.5-VL models. What each method is for, and where it is called: docs/encoder.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:  # the gateway and the media workers need no torch of it
    import torch

PATCH = 14
"""Pixels on a side of what the tower sees as one."""
MERGE = 2
"""Patches on a side of what becomes one embedding."""
CELL = PATCH * MERGE
CELLS_MAX = 64
FRAMES = 2
"""To this family a picture is a film of two equal frames."""


class Int8Encoder:
    """See :class:`foveate.models.own_encoder.VisionEncoder`."""

    version = "1"

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        settings = json.loads((Path(model_dir) / "preprocessor_config.json").read_text())
        self._mean = np.array(settings["image_mean"], np.float32) * 255
        self._deviation = np.array(settings["image_std"], np.float32) * 255

    def grid(self, width: int, height: int) -> tuple[int, int]:
        scale = min(1.0, math.sqrt(CELLS_MAX * CELL**2 / (width * height)))
        columns, rows = (max(1, int(side * scale / CELL)) for side in (width, height))
        return min(rows, CELLS_MAX // columns or 1), min(columns, CELLS_MAX)

    def input_bytes(self, width: int, height: int) -> int:
        rows, columns = self.grid(width, height)
        return rows * columns * MERGE**2 * FRAMES * 3 * PATCH**2 * 4 + 3 * 8

    def process(self, pixels: np.ndarray) -> Mapping[str, np.ndarray]:
        rows, columns = self.grid(pixels.shape[1], pixels.shape[0])
        resized = Image.fromarray(pixels).resize((columns * CELL, rows * CELL), Image.Resampling.BICUBIC)
        normal = (np.asarray(resized, np.float32) - self._mean) / self._deviation
        # Patches in the order of embeddings; of each all colours, both frames, then lines.
        cut = normal.reshape(rows, MERGE, PATCH, columns, MERGE, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
        film = np.repeat(cut[:, :, :, :, :, None], FRAMES, axis=5)
        return {
            "patches": film.reshape(-1, 3 * FRAMES * PATCH**2),
            "grid": np.array([[1, rows * MERGE, columns * MERGE]], np.int64),
        }

    def load(self, device: str, dtype: str) -> None:
        import torch
        from transformers import AutoModelForImageTextToText

        self._device, self._dtype = torch.device(device), getattr(torch, dtype)
        whole = AutoModelForImageTextToText.from_pretrained(self._model_dir, dtype=self._dtype, local_files_only=True)
        model = whole.model
        model.language_model = torch.nn.Module()  # Foveate loads that itself
        in_int8(model.visual)
        self._model = model.to(self._device).eval()

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        found = self._model.get_image_features(
            pixel_values=inputs["patches"].to(self._device, self._dtype),
            image_grid_thw=inputs["grid"].to(self._device),
            return_dict=True,
        )
        rows: torch.Tensor = found.pooler_output[0]
        return rows


def in_int8(module: torch.nn.Module) -> None:
    """Let every linear layer below ``module`` hold its weights in int8, with one scale for each output."""
    import torch

    class Int8Linear(torch.nn.Module):
        def __init__(self, linear: torch.nn.Linear) -> None:
            super().__init__()
            weight = linear.weight.detach()
            scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
            self.register_buffer("weight", (weight / scale).round().to(torch.int8))
            self.register_buffer("scale", scale)
            self.bias = linear.bias

        def forward(self, inputs: torch.Tensor) -> Any:
            return torch.nn.functional.linear(inputs, self.weight.to(self.scale.dtype) * self.scale, self.bias)

    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            in_int8(child)
