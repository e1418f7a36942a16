"""An operator's own vision encoder as a vision tower: every picture by itself, checked before anyone else sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from foveate.models.loading import EncoderFacts
from foveate.models.port import Embeddings

if TYPE_CHECKING:
    from foveate.models.own_encoder import VisionEncoder


class OwnTower:
    """:class:`foveate.models.port.VisionTower` over the operator's encoder."""

    def __init__(self, encoder: VisionEncoder, facts: EncoderFacts) -> None:
        self.encoder_version = facts.encoder_version
        self.embedding_bytes_per_row = facts.embedding_bytes_per_row
        self.embedding_dtype = facts.embedding_dtype
        self.embedding_levels = facts.embedding_levels
        self._encoder = encoder
        self._dtype: torch.dtype = getattr(torch, facts.embedding_dtype)
        self._hidden = facts.embedding_bytes_per_row // self._dtype.itemsize

    def encode(
        self, pictures: Sequence[Mapping[str, torch.Tensor]], *, together: bool = False
    ) -> list[Embeddings | Exception]:
        """See the port; none shares a pass with another."""
        return [self._one(picture) for picture in pictures]

    @torch.inference_mode()
    def _one(self, picture: Mapping[str, torch.Tensor]) -> Embeddings | Exception:
        try:
            rows = self._encoder.encode(picture)
            if not isinstance(rows, torch.Tensor) or not rows.is_floating_point():
                raise TypeError(
                    f"embeddings are {getattr(rows, 'dtype', type(rows).__name__)}, not a floating-point tensor"
                )
            if rows.dim() != 2 or rows.shape[1] != self._hidden:
                raise ValueError(f"embeddings of shape {tuple(rows.shape)}, not [rows, {self._hidden}]")
            held = rows.detach().to(self._dtype).contiguous()
            if not bool(torch.isfinite(held).all()):
                raise ValueError("embeddings are not finite (NaN or Inf)")
            return Embeddings(held)
        except Exception as error:
            return error
