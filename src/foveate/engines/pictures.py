"""Embeddings from the arena, checked before any language model sees them."""

from __future__ import annotations

import torch

from foveate.core.errors import EngineFailed
from foveate.encoders.tensors import read_embeddings
from foveate.engines.port import PictureInput
from foveate.models.port import Embeddings, Picture
from foveate.runtime.port import ArenaAccess


def load_picture(arena: ArenaAccess, given: PictureInput, bytes_per_row: int, device: torch.device) -> Picture:
    """Return a picture's embeddings on ``device``, after checking everything a wrong or stale slot could break.

    On a CPU they stay views of the arena. ``bytes_per_row`` is the encoder's: all levels of one row, in its dtype.
    Raises EngineFailed.
    """
    try:
        embeddings = read_embeddings(arena, given.embeddings)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise EngineFailed(detail=f"embeddings cannot be read: {type(error).__name__}: {error}") from error
    tensors = [embeddings.rows, *embeddings.deep]
    if any(tensor.dim() != 2 or tensor.shape[0] != given.rows for tensor in tensors):
        raise EngineFailed(
            detail=f"embeddings of shapes {[tuple(tensor.shape) for tensor in tensors]} for {given.rows} rows"
        )
    width = sum(tensor.shape[1] * tensor.element_size() for tensor in tensors)
    if width != bytes_per_row or not all(tensor.is_floating_point() for tensor in tensors):
        raise EngineFailed(detail=f"embedding rows of {width} bytes where the model has {bytes_per_row}")
    if not all(map(_finite, tensors)):
        raise EngineFailed(detail="embeddings hold NaN or infinite values")
    embeddings.rows = embeddings.rows.to(device)
    embeddings.deep = tuple(level.to(device) for level in embeddings.deep)
    return Picture(embeddings, given.meta)


def expected_picture(given: PictureInput) -> Picture:
    """Return what stands for a picture that is not there yet: as many rows, of no width."""
    return Picture(Embeddings(torch.empty((given.rows, 0))), given.meta)


def _finite(tensor: torch.Tensor) -> bool:
    """Whether all values are. Their sum is finite only if they are, and takes a fraction of looking at each; one that is not may also have
    grown too large."""
    return bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(torch.isfinite(tensor).all())
