"""Model inputs to embeddings: the vision tower and projector of a checkpoint.

A picture is encoded alone unless asked otherwise: then the same inputs give the same bits on every repetition, whatever
else is being encoded. Together, equal shapes share one pass, and embeddings may differ in the last bits. Not
thread-safe; one thread owns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foveate.models.families import Family
from foveate.models.port import Embeddings

Inputs = Mapping[str, torch.Tensor]


class TransformersVisionTower:
    """:class:`foveate.models.port.VisionTower` over a transformers model, which the language model shares."""

    def __init__(self, family: Family, model: Any, encoder_version: str) -> None:
        self.encoder_version = encoder_version
        self._family = family
        self._model = model.base_model
        self._device: torch.device = model.device
        self._dtype: torch.dtype = model.dtype
        config = model.config
        levels = 1 + len(getattr(config.vision_config, "deepstack_visual_indexes", ()) or ())
        self.embedding_levels = levels
        self.embedding_dtype = str(self._dtype).removeprefix("torch.")
        self.embedding_bytes_per_row = int(config.get_text_config().hidden_size) * levels * self._dtype.itemsize

    def encode(self, pictures: Sequence[Inputs], *, together: bool = False) -> list[Embeddings | Exception]:
        """Encode pictures; one failing picture yields its exception alone.

        ``together`` lets pictures whose inputs have equal shapes share one pass; if that pass fails, its pictures are
        encoded alone.
        """
        if not together or len(pictures) < 2:
            return [self._one(picture) for picture in pictures]
        groups: dict[tuple[tuple[str, tuple[int, ...]], ...], list[int]] = {}
        for index, picture in enumerate(pictures):
            shape = tuple(sorted((name, tuple(value.shape)) for name, value in picture.items()))
            groups.setdefault(shape, []).append(index)
        found: dict[int, Embeddings | Exception] = {}
        for indices in groups.values():
            found.update(zip(indices, self._group([pictures[index] for index in indices]), strict=True))
        return [found[index] for index in range(len(pictures))]

    def _group(self, pictures: Sequence[Inputs]) -> Sequence[Embeddings | Exception]:
        if len(pictures) == 1:
            return [self._one(pictures[0])]
        joined = {name: torch.cat([picture[name] for picture in pictures]) for name in pictures[0]}
        try:
            return self._forward(joined, len(pictures))
        except Exception:
            # Whichever picture it was, it must fail alone.
            return [self._one(picture) for picture in pictures]

    def _one(self, picture: Inputs) -> Embeddings | Exception:
        try:
            return self._forward(picture, 1)[0]
        except Exception as error:
            return error

    @torch.inference_mode()
    def _forward(self, inputs: Inputs, count: int) -> list[Embeddings]:
        arguments = {
            name: value.to(self._device, self._dtype if value.is_floating_point() else value.dtype)
            for name, value in inputs.items()
            if name in self._family.inputs
        }
        features = self._model.get_image_features(**arguments, return_dict=True)
        rows = self._flat(features.pooler_output)
        levels = [self._flat(level) for level in getattr(features, "deepstack_features", None) or ()]
        if rows.shape[0] % count:
            raise ValueError(f"{rows.shape[0]} embedding rows for {count} pictures of one shape")
        size = rows.shape[0] // count
        return [
            Embeddings(
                rows=rows[start : start + size].contiguous(),
                deep=tuple(level[start : start + size].contiguous() for level in levels),
            )
            for start in range(0, rows.shape[0], size)
        ]

    @staticmethod
    def _flat(found: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
        """Bring a tensor [tiles, rows, hidden], or one tensor [rows, hidden] a picture, to [all rows, hidden]."""
        if isinstance(found, torch.Tensor):
            return found.reshape(-1, found.shape[-1])
        return torch.cat(list(found))
