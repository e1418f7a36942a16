"""Every family gives, picture by picture, what transformers gives for the whole prompt at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.families import FAMILIES as BUILDERS
from tests.unit.models.loaded import (
    Loaded,
    conversation,
    encode,
    generate,
    greedy,
    joint_call,
    pixels,
    process,
    prompt_ids,
)

from foveate.core.media import ImageOptions
from foveate.models.families import FAMILIES, supported_families

ModelOf = Callable[[str], Loaded]
NAMES = list(FAMILIES)
TOKENS = 14
PAGE = Path(__file__).parents[3] / "docs" / "models.md"
SIZES = ((190, 130), (97, 201))


def test_every_family_of_the_table_is_tested() -> None:
    assert set(BUILDERS) == set(NAMES)
    assert len(supported_families()) == len(NAMES)


def test_the_page_lists_the_table(model_of: ModelOf) -> None:
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert tuple(title for title, _, _ in rows) == supported_families()
    for name, (_, kind, low) in zip(NAMES, rows, strict=True):
        assert kind == model_of(name).their_model.config.model_type
        lowered = model_of(name).prompt.options(ImageOptions(pixels_max=1)) != ImageOptions()
        assert lowered is not low.startswith("nothing"), name


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_equal_generate(name: str, count: int, model_of: ModelOf) -> None:
    model = model_of(name)
    turns, images = conversation(count), [pixels(*SIZES[index], seed=index) for index in range(count)]
    joint = joint_call(model, turns, images)
    processed = process(model, images)
    ids = prompt_ids(model, turns, processed)
    assert ids == joint["input_ids"][0].tolist()
    tokens, logits = greedy(model, ids, encode(model, processed), TOKENS)
    their_tokens, their_logits = generate(model, joint, TOKENS)
    assert tokens == their_tokens
    # The Pixtral towers run all pictures of a call as one sequence, so that only they differ in the last bits.
    torch.testing.assert_close(torch.stack(logits), torch.stack(their_logits), rtol=0, atol=3e-5)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_depend_on_the_picture(name: str, model_of: ModelOf) -> None:
    model = model_of(name)
    turns = conversation(1)
    found = []
    for seed in range(2):
        processed = process(model, [pixels(190, 130, seed=seed)])
        found.append(greedy(model, prompt_ids(model, turns, processed), encode(model, processed), 1)[1][0])
    assert (found[0] - found[1]).abs().max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_text_alone_equals_generate(name: str, model_of: ModelOf) -> None:
    model = model_of(name)
    turns = conversation(0)
    joint = joint_call(model, turns, [])
    ids = prompt_ids(model, turns, [])
    assert ids == joint["input_ids"][0].tolist()
    assert greedy(model, ids, [], TOKENS)[0] == generate(model, joint, TOKENS)[0]


@pytest.mark.parametrize("name", NAMES)
def test_chunked_prefill_gives_the_same(name: str, model_of: ModelOf) -> None:
    model = model_of(name)
    turns, images = conversation(2), [pixels(*size) for size in SIZES]
    processed = process(model, images)
    ids, pictures = prompt_ids(model, turns, processed), encode(model, processed)
    whole = greedy(model, ids, pictures, 8)
    borders = model.language.chunk_borders(ids)
    allowed = list(range(1, len(ids))) if borders is None else list(borders)[:-1]
    cuts = sorted({allowed[len(allowed) * third // 4] for third in (1, 2, 3)})
    tokens, logits = greedy(model, ids, pictures, 8, chunks=cuts)
    assert tokens == whole[0]
    torch.testing.assert_close(torch.stack(logits), torch.stack(whole[1]), rtol=0, atol=5e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_forked_cache_goes_on_as_the_whole_prompt_does(name: str, model_of: ModelOf) -> None:
    """What another prompt goes on from stays as it was, however far the first one went."""
    model = model_of(name)
    processed = process(model, [pixels(*size) for size in SIZES])
    ids, pictures = prompt_ids(model, conversation(2), processed), encode(model, processed)
    borders = model.language.chunk_borders(ids)
    cut = len(ids) * 2 // 3 if borders is None else [border for border in borders if border <= len(ids) * 2 // 3][-1]
    positions, cache = model.language.positions(ids, pictures), model.language.new_cache()
    whole = model.language.prefill(ids, pictures, positions, cache, 0, len(ids))
    for _ in range(2):
        forked = model.language.fork(cache, cut)
        assert forked.get_seq_length() == cut
        again = model.language.prefill(ids, pictures, positions, forked, cut, len(ids))
        torch.testing.assert_close(again, whole, rtol=0, atol=5e-5)
    assert cache.get_seq_length() == len(ids)


def test_gemma3_is_never_cut_within_a_picture(model_of: ModelOf) -> None:
    model = model_of("gemma3")
    processed = process(model, [pixels(64, 64), pixels(64, 64)])
    ids = prompt_ids(model, conversation(2), processed)
    soft = model.their_model.config.image_token_id
    borders = model.language.chunk_borders(ids)
    assert borders is not None
    assert borders[-1] == len(ids)
    assert list(borders) == sorted(set(borders))
    assert not any(ids[border - 1] == soft == ids[border] for border in borders[:-1])
    assert len(borders) == len(ids) - 2 * (4 - 1)


@pytest.mark.parametrize("name", NAMES)
def test_batched_left_padded_decoding_gives_the_same(name: str, model_of: ModelOf) -> None:
    from transformers.cache_utils import Cache, DynamicLayer

    model = model_of(name)
    alone, caches, following, first = [], [], [], []
    for count in (1, 2):
        turns = conversation(count, "hello " * (5 * count))
        processed = process(model, [pixels(*SIZES[index], seed=index) for index in range(count)])
        ids, pictures = prompt_ids(model, turns, processed), encode(model, processed)
        alone.append(greedy(model, ids, pictures, 6)[0])
        positions, cache = model.language.positions(ids, pictures), model.language.new_cache()
        first.append(int(model.language.prefill(ids, pictures, positions, cache, 0, len(ids)).argmax()))
        caches.append(cache)
        following.append(positions.next)
    length = max(cache.get_seq_length() for cache in caches)
    mask = torch.zeros(2, length, dtype=torch.long)
    for row, cache in enumerate(caches):
        mask[row, length - cache.get_seq_length() :] = 1
    layers = []
    for index in range(len(caches[0].layers)):
        parts = [(cache.layers[index].keys, cache.layers[index].values) for cache in caches]
        padded = [
            [torch.nn.functional.pad(part, (0, 0, length - part.shape[-2], 0)) for part in pair]
            for pair in zip(*parts, strict=True)
        ]
        layer = DynamicLayer()
        layer.update(torch.cat(padded[0]), torch.cat(padded[1]))
        layers.append(layer)
    batch, tokens = Cache(layers=layers), [first]
    for step in range(5):
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], dim=1)
        logits = model.language.decode(torch.tensor(tokens[-1]), torch.tensor(following) + step, batch, mask)
        tokens.append(logits.argmax(-1).tolist())
    assert [list(row) for row in zip(*tokens, strict=True)] == alone


@pytest.mark.parametrize("name", NAMES)
def test_encoding_together_is_close_and_alone_is_bit_equal(name: str, model_of: ModelOf) -> None:
    model = model_of(name)
    options = ImageOptions()
    processed = [model.pictures.process(pixels(150, 100, seed=seed), options) for seed in range(2)]
    once, again, joined = encode(model, processed), encode(model, processed), encode(model, processed, together=True)
    for first, second, third in zip(once, again, joined, strict=True):
        assert torch.equal(first.embeddings.rows, second.embeddings.rows)
        torch.testing.assert_close(first.embeddings.rows, third.embeddings.rows, rtol=1e-4, atol=1e-4)
        assert len(first.embeddings.deep) == len(third.embeddings.deep)
        size = sum(level.numel() * level.element_size() for level in (first.embeddings.rows, *first.embeddings.deep))
        assert size == first.embeddings.rows.shape[0] * model.tower.embedding_bytes_per_row
