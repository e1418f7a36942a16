"""What is kept of prompts: who may start from it and how far, and that nobody hears anything else for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.engines.embedded.driver import Driver, Heard
from tests.unit.models.loaded import Loaded, conversation, encode, pixels, process, prompt_ids
from transformers import DynamicCache

from foveate.core.memory import Slot, TensorBundle
from foveate.decisions.batching import BatchLimits
from foveate.engines.embedded.prefixes import WORTH_TOKENS, Prefix, Prefixes, prompt_of
from foveate.engines.port import PictureInput
from foveate.models.port import Positions

ModelOf = Callable[[str], Loaded]
KEPT = 32 << 20


def prefix(*tokens: int | str) -> Prefix:
    """A prompt of 8 bytes a token, and 12 beside."""
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, len(tokens), 1), torch.zeros(1, 1, len(tokens), 1), 0)
    return Prefix(tokens, cache, torch.zeros(1), Positions(torch.zeros(1, 1, dtype=torch.int64), len(tokens)))


def asked(driver: Driver, question: str, seed: int, name: str | None = None) -> tuple[list[int], list[PictureInput]]:
    """Return a question about one picture, named by its seed unless otherwise."""
    processed = process(driver.model, [pixels(150, 100, seed)])
    (picture,) = encode(driver.model, processed)
    content = f"picture {seed}" if name is None else name
    return prompt_ids(driver.model, conversation(1, question), processed), [driver.picture(picture, content)]


def answer(driver: Driver, ids: list[int], pictures: list[PictureInput], scope: str = "") -> Heard:
    name = f"request {len(driver.heard)}"
    driver.submit(name, ids, pictures, scope=scope)
    return driver.finish(name)[0]


def cached(heard: Heard) -> int:
    assert heard.failure is None
    return heard.finishes[0].cached_tokens


@pytest.mark.parametrize("family", ["demo", "qwen3_vl", "gemma3"])
@pytest.mark.parametrize("chunk_tokens", [512, 32])
def test_prompts_that_begin_alike_are_answered_as_if_nothing_were_kept(
    model_of: ModelOf, family: str, chunk_tokens: int
) -> None:
    model, limits = model_of(family), BatchLimits(8, chunk_tokens, 65536)
    fresh, driver = Driver(model, limits=limits), Driver(model, limits=limits, prefix_bytes_max=KEPT)
    questions = [("what is in this image?", 0), ("what is in this image?", 0), ("what is this?", 0), ("what is", 1)]
    tokens = []
    for question, seed in questions:
        ids, pictures = asked(driver, question, seed)
        heard = answer(driver, ids, pictures)
        tokens.append((cached(heard), ids))
        assert heard.tokens == answer(fresh, *asked(fresh, question, seed)).tokens
    (none, first), (all_, again), (some, third), (little, other) = tokens
    picture = model.language.picture_token_id
    behind = len(third) - third[::-1].index(picture)
    assert (none, all_) == (0, len(again))
    assert behind <= some < len(third), "the picture and what follows it up to where the questions differ"
    assert little < other.index(picture) + 1, "the same token ids, but another picture"
    assert first == again


def test_equal_prompts_at_once_are_prefilled_once(demo: Loaded) -> None:
    runs: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(demo.language, name)

        def prefill(self, token_ids: Any, pictures: Any, positions: Any, cache: Any, start: int, end: int) -> Any:
            runs.append(end - start)
            return demo.language.prefill(token_ids, pictures, positions, cache, start, end)

    driver = Driver(demo, limits=BatchLimits(4, 64, 65536), language=Counting(), prefix_bytes_max=KEPT)
    ids, pictures = asked(driver, "what is in this image?", 0)
    names = [f"request {number}" for number in range(12)]
    for name in names:
        driver.submit(name, ids, pictures)
    heard = driver.finish(*names)
    # The chunk budget has room for a second prompt's beginning while the first one is under way.
    assert sum(runs) < 2 * len(ids)
    assert {tuple(each.tokens[0]) for each in heard} == {tuple(heard[0].tokens[0])}
    assert sum(cached(each) == len(ids) for each in heard) >= 10


def test_a_scope_meets_its_own_prompts_only(demo: Loaded) -> None:
    driver = Driver(demo, prefix_bytes_max=KEPT)
    ids, pictures = asked(driver, "what is this?", 0)
    found = [cached(answer(driver, ids, pictures, scope)) for scope in ("", "acme", "acme", "")]
    assert found == [0, 0, len(ids), len(ids)]


def test_a_picture_without_a_name_is_never_known_again(demo: Loaded) -> None:
    driver = Driver(demo, prefix_bytes_max=KEPT)
    assert [cached(answer(driver, *asked(driver, "what is this?", 0, name=""))) for _ in range(2)] == [0, 0]


def test_a_picture_is_known_by_its_name_and_not_by_its_slot(demo: Loaded) -> None:
    driver = Driver(demo, prefix_bytes_max=KEPT)
    ids, pictures = asked(driver, "what is this?", 0)
    first = answer(driver, ids, pictures)
    driver.outbox.arena.release(pictures[0].embeddings.slot)
    other_ids, others = asked(driver, "what is this?", 1)
    assert (other_ids, others[0].embeddings.slot) == (ids, pictures[0].embeddings.slot)
    other = answer(driver, other_ids, others)
    assert cached(other) < len(ids) // 2
    assert other.events[0].token_ids != first.events[0].token_ids or other.tokens != first.tokens
    moved_ids, moved = asked(driver, "what is this?", 0)
    assert moved[0].embeddings.slot != pictures[0].embeddings.slot
    assert cached(answer(driver, moved_ids, moved)) == len(ids)


def test_the_longest_common_beginning_is_found_and_a_short_one_is_not_worth_it() -> None:
    kept = Prefixes(1 << 20)
    for tokens in (range(20), range(30), (*range(25), 99, 98), range(100, 140)):
        kept.keep("", prefix(*tokens))
    for prompt, shared in (
        (range(30), 30),
        (range(28), 28),
        ((*range(25), 99, 7), 26),
        ((*range(18), 50), 18),
        ((*range(WORTH_TOKENS), 50), WORTH_TOKENS),
    ):
        found = kept.find("", tuple(prompt))
        assert found is not None
        assert found[1] == shared
        assert found[0].prompt[:shared] == tuple(prompt)[:shared]
    assert kept.find("", (*range(WORTH_TOKENS - 1), 50)) is None
    assert kept.find("other", tuple(range(30))) is None


def test_bytes_are_counted_and_bounded_and_what_was_used_last_stays() -> None:
    kept = Prefixes(3 * (20 * 8 + 12))
    prompts = [tuple(range(number, number + 20)) for number in range(0, 100, 20)]
    for prompt in prompts[:3]:
        kept.keep("", prefix(*prompt))
        kept.keep("", prefix(*prompt))
    assert (len(kept), kept.bytes) == (3, 3 * 172)
    assert kept.find("", prompts[0])
    kept.keep("", prefix(*prompts[3]))
    assert [kept.find("", prompt) is not None for prompt in prompts[:4]] == [True, False, True, True]
    kept.keep("", prefix(*range(500, 600)))
    assert kept.bytes == 3 * 172, "what could never fit displaces nobody"


def test_a_prompt_is_known_by_its_pictures_names() -> None:
    def picture(rows: int, name: str) -> PictureInput:
        return PictureInput(TensorBundle(Slot(0, 0), (), 0), rows, {}, name)

    assert prompt_of([1, 7, 7, 2, 7], [picture(2, "a"), picture(1, "b")], 7) == (1, "a", "a", 2, "b")
    assert prompt_of([1, 7, 7], [picture(2, "")], 7) is None
    assert prompt_of([1, 7, 7], [picture(1, "a")], 7) is None
    assert prompt_of([1, 2], [], 7) == (1, 2)
