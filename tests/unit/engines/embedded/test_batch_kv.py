"""The batched KV cache keeps every row's keys and values through joins, leaves, moves and growth."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import DynamicCache

from foveate.engines.embedded.batch_kv import BatchKV, capacity

LAYERS, HEADS, SIZE = 2, 2, 4


def prefilled(length: int, mark: float) -> DynamicCache:
    """Return a cache whose values name row, layer and place."""
    cache = DynamicCache()
    for layer in range(LAYERS):
        keys = mark + layer / 10 + torch.arange(length).float()[None, None, :, None] / 1000
        cache.update(keys.expand(1, HEADS, length, SIZE), -keys.expand(1, HEADS, length, SIZE), layer)
    return cache


def step(kv: BatchKV, marks: list[float]) -> list[torch.Tensor]:
    """Append one column as a model would; return the keys each layer was shown."""
    kv.reserve()
    mask = kv.mask("cpu")
    shown = []
    new = torch.tensor(marks)[:, None, None, None].expand(-1, HEADS, 1, SIZE)
    assert kv.cache.get_seq_length() == kv.width
    assert kv.cache.get_mask_sizes(1, 0) == (kv.width + 1, 0)
    for layer in range(LAYERS):
        keys, values = kv.cache.update(new + layer / 10, -new - layer / 10, layer)
        assert torch.equal(keys, -values)
        shown.append(keys)
    if mask is not None:
        assert mask.shape == (kv.rows, kv.width + 1)
        assert mask.sum(1).tolist() == [length + 1 for length in kv.lengths]
        assert bool((mask.diff(dim=1) >= 0).all()), "padding only on the left"
    kv.advance()
    return shown


def test_rows_survive_any_sequence_of_joins_steps_and_leaves() -> None:
    chance = random.Random(0)
    kv = BatchKV(tokens_max=4096)
    model: list[list[float]] = []
    for turn in range(600):
        action = chance.random()
        if action < 0.15 and len(model) < 7:
            length, copies = chance.choice([1, 5, 40, 130, 300]), chance.choice([1, 1, 2])
            kv.join(prefilled(length, float(turn)), copies)
            model += [[turn + place / 1000 for place in range(length)] for _ in range(copies)]
        elif action < 0.25 and model:
            row = chance.randrange(len(model))
            kv.leave(row, scrub=chance.random() < 0.5)
            model[row] = model[-1]
            model.pop()
        elif model:
            marks = [turn + row / 100 for row in range(len(model))]
            shown = step(kv, marks)
            for row, values in enumerate(model):
                values.append(marks[row])
            for layer, keys in enumerate(shown):
                for row, values in enumerate(model):
                    expected = torch.tensor(values) + layer / 10
                    assert torch.allclose(keys[row, 0, -len(values) :, 0], expected, atol=1e-4)
        assert kv.lengths == [len(values) for values in model]
        assert kv.tokens_used == sum(map(len, model))
        assert kv.tokens_allocated <= kv.tokens_max


def test_a_scrubbed_row_leaves_nothing_behind() -> None:
    kv = BatchKV(tokens_max=1024)
    kv.join(prefilled(10, 1.0))
    kv.join(prefilled(20, float("nan")))
    kv.leave(1, scrub=True)
    kv.join(prefilled(5, 2.0))
    assert bool(torch.isfinite(step(kv, [3.0, 3.0])[0]).all())


def test_equal_lengths_need_no_mask() -> None:
    kv = BatchKV(tokens_max=1024)
    kv.join(prefilled(10, 1.0), 3)
    assert kv.mask("cpu") is None
    kv.join(prefilled(9, 1.0))
    assert kv.mask("cpu") is not None


def test_clear_gives_everything_back() -> None:
    kv = BatchKV(tokens_max=1024)
    kv.join(prefilled(10, 1.0))
    kv.clear()
    assert (kv.rows, kv.tokens_used, kv.tokens_allocated, kv.cache) == (0, 0, 0, None)
    kv.join(prefilled(3, 1.0))
    step(kv, [1.0])


@pytest.mark.parametrize(
    ("rows", "length", "tokens_max", "expected"),
    [
        (3, 100, 10_000, (4, 128)),
        (1, 1, 1024, (1, 64)),
        (3, 100, 400, (3, 128)),
        (3, 100, 300, (3, 100)),
        (3, 9, 30, (3, 10)),
    ],
)
def test_capacity(rows: int, length: int, tokens_max: int, expected: tuple[int, int]) -> None:
    assert capacity(rows, length, tokens_max) == expected


def test_capacity_refuses_what_cannot_fit() -> None:
    with pytest.raises(ValueError, match="exceed the KV capacity"):
        capacity(3, 101, 302)
