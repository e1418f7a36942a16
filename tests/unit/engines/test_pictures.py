"""Embeddings are checked before a language model sees them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from foveate.core.errors import EngineFailed
from foveate.encoders.tensors import write_embeddings
from foveate.engines.pictures import load_picture
from foveate.engines.port import PictureInput
from foveate.models.port import Embeddings
from foveate.runtime.arena import Arena

ROWS, WIDTH = 6, 8
CPU = torch.device("cpu")


def given(arena: Arena, rows: torch.Tensor, *deep: torch.Tensor) -> PictureInput:
    slot = arena.allocate(4096)
    return PictureInput(write_embeddings(arena, slot, Embeddings(rows, deep)), ROWS, {})


@pytest.fixture
def arena() -> Arena:
    return Arena(1 << 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_sound_is_taken_however_large_its_sum(arena: Arena, dtype: torch.dtype) -> None:
    rows = torch.full((ROWS, WIDTH), torch.finfo(dtype).max, dtype=dtype)
    found = load_picture(arena, given(arena, rows, rows), 2 * WIDTH * dtype.itemsize, CPU)
    assert torch.equal(found.embeddings.rows, rows)
    assert torch.equal(found.embeddings.deep[0], rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [("nan",), ("inf",), ("-inf",), ("inf", "-inf")])
def test_one_value_that_is_no_number_is_found_anywhere(arena: Arena, dtype: torch.dtype, bad: tuple[str, ...]) -> None:
    for level in (0, 1):
        levels = [torch.zeros(ROWS, WIDTH, dtype=dtype) for _ in range(2)]
        for place, value in enumerate(bad):
            levels[level][place, -1] = float(value)
        with pytest.raises(EngineFailed, match="NaN"):
            load_picture(arena, given(arena, *levels), 2 * WIDTH * dtype.itemsize, CPU)


@pytest.mark.parametrize("changes", [{"rows": ROWS + 1}, {"rows": ROWS - 1}])
def test_another_number_of_rows_is_refused(arena: Arena, changes: dict[str, Any]) -> None:
    picture = msgspec.structs.replace(given(arena, torch.zeros(ROWS, WIDTH)), **changes)
    with pytest.raises(EngineFailed):
        load_picture(arena, picture, WIDTH * 4, CPU)


def test_another_width_is_refused(arena: Arena) -> None:
    with pytest.raises(EngineFailed):
        load_picture(arena, given(arena, torch.zeros(ROWS, WIDTH)), WIDTH * 4 + 4, CPU)
