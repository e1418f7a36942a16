"""Torch tensors in slots of the arena: :mod:`foveate.runtime.tensors` knows NumPy only, which knows no bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from foveate.core.memory import Slot, TensorBundle
from foveate.models.port import Embeddings
from foveate.runtime.port import ArenaAccess
from foveate.runtime.tensors import read_bundle, write_bundle

_CARRIED_AS = {torch.bfloat16: torch.uint16}
"""What carries a dtype that NumPy cannot express."""


def read_tensors(arena: ArenaAccess, bundle: TensorBundle) -> dict[str, torch.Tensor]:
    """Return the bundle's tensors as views of the arena: valid only while the slot's owner keeps it. Raises
    ValueError."""
    arrays = read_bundle(arena.view(bundle.slot), bundle)
    return {ref.name: _as_torch(arrays[ref.name], ref.dtype) for ref in bundle.tensors}


def read_embeddings(arena: ArenaAccess, bundle: TensorBundle) -> Embeddings:
    """Return the embeddings of :class:`foveate.core.media.EncodedImage` as views of the arena. Raises ValueError,
    KeyError."""
    tensors = read_tensors(arena, bundle)
    levels = range(len(tensors) - 1)
    return Embeddings(tensors["rows"], tuple(tensors[f"deep{level}"] for level in levels))


def write_embeddings(arena: ArenaAccess, out: Slot, embeddings: Embeddings) -> TensorBundle:
    """Copy embeddings into ``out``. Raises :class:`foveate.runtime.tensors.SlotTooSmall`."""
    return write_tensors(
        arena, out, {"rows": embeddings.rows} | {f"deep{level}": each for level, each in enumerate(embeddings.deep)}
    )


def write_tensors(arena: ArenaAccess, out: Slot, tensors: Mapping[str, torch.Tensor]) -> TensorBundle:
    """Copy tensors into ``out``. Raises :class:`foveate.runtime.tensors.SlotTooSmall`."""
    arrays = {name: _as_numpy(tensor) for name, tensor in tensors.items()}
    dtypes = {name: _dtype_name(tensor) for name, tensor in tensors.items()}
    return write_bundle(arena.view(out), out, arrays, dtypes)


def _as_torch(array: Any, dtype: str) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    wanted: torch.dtype = getattr(torch, dtype)
    return tensor if tensor.dtype == wanted else tensor.view(wanted)


def _as_numpy(tensor: torch.Tensor) -> Any:
    carried = _CARRIED_AS.get(tensor.dtype)
    plain = tensor.detach().cpu().contiguous()
    return (plain if carried is None else plain.view(carried)).numpy()


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
