"""How far two embeddings of one picture are from each other. In NumPy, on views of the arena: to be called in a thread."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

ROWS_AT_ONCE = 1024
"""Rows that are held in float64 at once: 29 MB of a width of 3,584."""


class Difference(msgspec.Struct, frozen=True):
    """Of one picture. ``finite`` is of the new embedding. ``cosine`` and ``norm_ratio`` (new by old) are means over its rows, those of
    DeepStack levels included, ``cosine_min`` that of the row that differs most; None where the shapes differ or a value of either is not
    finite.
    """

    finite: bool
    same_shape: bool
    cosine: float | None = None
    norm_ratio: float | None = None
    cosine_min: float | None = None


def difference(old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> Difference:
    """Compare tensors by name; each is [rows, width], float32, float16, or bfloat16 carried as uint16."""
    finite = is_finite(new)
    same = {name: tensor.shape for name, tensor in old.items()} == {name: tensor.shape for name, tensor in new.items()}
    if not finite or not same or not is_finite(old):
        # Where the old one is not finite, nothing can be said against the new one.
        return Difference(finite, same)
    cosines: list[np.ndarray] = []
    ratios: list[np.ndarray] = []
    for name, tensor in old.items():
        for before, after in zip(_parts(tensor), _parts(new[name]), strict=True):
            lengths = np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1)
            product = lengths[0] * lengths[1]
            both_nothing = (lengths[0] == 0) & (lengths[1] == 0)
            inner = np.einsum("rw,rw->r", before, after)
            cosines.append(np.where(product > 0, inner / np.where(product > 0, product, 1), both_nothing))
            ratios.append(np.where(lengths[0] > 0, lengths[1] / np.where(lengths[0] > 0, lengths[0], 1), 1.0))
    if not cosines:
        return Difference(finite, same)
    cosine, ratio = np.concatenate(cosines), np.concatenate(ratios)
    return Difference(finite, same, float(cosine.mean()), float(ratio.mean()), float(cosine.min()))


def is_finite(tensors: Mapping[str, np.ndarray]) -> bool:
    """Whether no value is NaN or Inf."""
    return all(bool(np.isfinite(part).all()) for tensor in tensors.values() for part in _parts(tensor))


def _parts(tensor: np.ndarray) -> list[np.ndarray]:
    return [_widened(tensor[at : at + ROWS_AT_ONCE]) for at in range(0, len(tensor), ROWS_AT_ONCE)]


def _widened(part: np.ndarray) -> np.ndarray:
    """Return float64; what is carried as uint16 is bfloat16, the upper half of a float32."""
    if part.dtype == np.uint16:
        part = (part.astype(np.uint32) << 16).view(np.float32)
    return part.astype(np.float64)
