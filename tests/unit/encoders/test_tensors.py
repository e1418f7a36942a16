"""Embeddings cross the arena bit for bit, in every dtype a vision tower may have."""

from __future__ import annotations

import pytest
import torch

from foveate.encoders.tensors import read_embeddings, read_tensors, write_embeddings
from foveate.models.port import Embeddings
from foveate.runtime.arena import Arena
from foveate.runtime.tensors import SlotTooSmall


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("levels", [0, 3])
def test_round_trip(dtype: torch.dtype, levels: int) -> None:
    arena = Arena(1 << 20)
    tensors = [torch.randn(7, 24).to(dtype) for _ in range(1 + levels)]
    slot = arena.allocate(sum(tensor.nbytes + 64 for tensor in tensors))
    bundle = write_embeddings(arena, slot, Embeddings(tensors[0], tuple(tensors[1:])))
    read = read_embeddings(arena, bundle)
    for written, found in zip(tensors, [read.rows, *read.deep], strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, written)
    assert [ref.name for ref in bundle.tensors] == ["rows", *(f"deep{level}" for level in range(levels))]


def test_what_is_read_is_the_arena_itself() -> None:
    arena = Arena(1 << 20)
    slot = arena.allocate(1024)
    bundle = write_embeddings(arena, slot, Embeddings(torch.zeros(2, 4)))
    tensor = read_tensors(arena, bundle)["rows"]
    arena.view(slot)[0:4] = b"\x00\x00\x80\x3f"
    assert float(tensor[0, 0]) == 1.0


def test_a_transposed_tensor_is_written_in_order() -> None:
    arena = Arena(1 << 20)
    rows = torch.arange(6.0).reshape(2, 3).T
    bundle = write_embeddings(arena, arena.allocate(1024), Embeddings(rows))
    assert torch.equal(read_embeddings(arena, bundle).rows, rows)


def test_a_slot_that_is_too_small_is_refused() -> None:
    arena = Arena(1 << 20)
    with pytest.raises(SlotTooSmall):
        write_embeddings(arena, arena.allocate(64), Embeddings(torch.zeros(100, 4)))
