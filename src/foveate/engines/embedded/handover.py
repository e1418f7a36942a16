"""A prefilled prompt in a slot of the arena: what one process writes there and another goes on with.

The K/V of all layers lie there as ``k0``, ``v0``, ``k1`` ... (each [1, heads, tokens, head size]), and
the ``logits`` behind the last token, float32 [vocabulary]. Who reads them copies them once, into the batch's own buffers.

Does not cover: who may use the slot for how long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foveate.core.errors import EngineFailed
from foveate.core.memory import Slot, TensorBundle
from foveate.encoders.tensors import read_tensors, write_tensors
from foveate.runtime.arena import ALIGNMENT
from foveate.runtime.port import ArenaAccess


@dataclass(frozen=True, slots=True)
class HandedLayer:
    """One layer's keys and values, [1, heads, tokens, head size]."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class HandedKV:
    """A prompt's K/V as :meth:`foveate.engines.embedded.batch_kv.BatchKV.join` takes it: views of the arena where it lies on a CPU."""

    layers: Sequence[HandedLayer]

    def get_seq_length(self) -> int:
        """Tokens, by the name that transformers' caches have for it."""
        return int(self.layers[0].keys.shape[-2])


def write_prompt(arena: ArenaAccess, out: Slot, cache: Any, logits: torch.Tensor) -> TensorBundle:
    """Copy a prompt's K/V and logits into ``out``. Raises :class:`foveate.runtime.tensors.SlotTooSmall`."""
    tensors = {"logits": logits}
    for number, layer in enumerate(cache.layers):
        tensors |= {f"k{number}": layer.keys, f"v{number}": layer.values}
    return write_tensors(arena, out, tensors)


def read_prompt(
    arena: ArenaAccess, bundle: TensorBundle, tokens: int, device: torch.device
) -> tuple[HandedKV, torch.Tensor]:
    """Return a prompt's K/V and logits. Raises EngineFailed for what cannot be those of a prompt of ``tokens``."""
    try:
        tensors = read_tensors(arena, bundle)
        logits = tensors.pop("logits").to(device)
        layers = [
            HandedLayer(tensors[f"k{number}"].to(device), tensors[f"v{number}"].to(device))
            for number in range(len(tensors) // 2)
        ]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise EngineFailed(detail=f"K/V cannot be read: {type(error).__name__}: {error}") from error
    shapes = {tuple(each.shape) for layer in layers for each in (layer.keys, layer.values)}
    if not layers or any(len(shape) != 4 or shape[0] != 1 or shape[2] != tokens for shape in shapes):
        raise EngineFailed(detail=f"K/V of shapes {sorted(shapes)} for a prompt of {tokens} tokens")
    return HandedKV(layers), logits


def handover_size(cache: Any, logits: torch.Tensor) -> tuple[int, int]:
    """Return the bytes that a prompt takes for each token, and once, from one that was prefilled: K/V; logits and alignment."""
    size = sum(int(each.nbytes) for layer in cache.layers for each in (layer.keys, layer.values))
    return -(-size // int(cache.get_seq_length())), int(logits.nbytes) + ALIGNMENT * (2 * len(cache.layers) + 1)
