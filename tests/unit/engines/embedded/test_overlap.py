"""A prompt whose pictures come one after the other: the same tokens, begun before the last is there, and in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from tests.unit.engines.embedded.driver import GREEDY, Driver, absent
from tests.unit.engines.embedded.test_handover import Pair
from tests.unit.engines.embedded.test_loop import prompt, text_prompt
from tests.unit.models.loaded import Loaded

from foveate.core.clock import now
from foveate.decisions.batching import BatchLimits
from foveate.engines.embedded.messages import Prefill
from foveate.engines.embedded.requests import picture_starts
from foveate.engines.port import PictureInput

ModelOf = Callable[[str], Loaded]
SIZES = [(150, 100), (90, 120), (64, 64)]
QUESTION = "what is in this image?"


def starts(driver: Driver, ids: list[int], pictures: list[PictureInput]) -> list[int]:
    return picture_starts(Driver.work("r", ids, pictures), driver.model.language.picture_token_id)


@pytest.mark.parametrize("family", ["demo", "qwen3_vl", "gemma3"])
@pytest.mark.parametrize("chunk_tokens", [512, 16])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["in order", "the last first"])
def test_the_same_tokens_as_with_all_pictures_at_once(
    model_of: ModelOf, family: str, chunk_tokens: int, order: tuple[int, int]
) -> None:
    driver = Driver(model_of(family), limits=BatchLimits(16, chunk_tokens, 65536))
    ids, pictures = prompt(driver, SIZES, QUESTION)
    expected = driver.answer(ids, GREEDY, *pictures)
    assert expected.events[0].ahead == ()
    begins = starts(driver, ids, pictures)
    driver.submit("late", ids, [pictures[0], absent(pictures[1]), absent(pictures[2])])
    driver.stall()
    borders = driver.model.language.chunk_borders(ids) or range(len(ids))
    assert driver.loop.kv_tokens_used == max(border for border in borders if border <= begins[1])
    driver.arrive("late", order[0], pictures[order[0]])
    driver.stall()
    assert (driver.loop.kv_tokens_used > begins[1]) == (order[0] == 1)
    assert not driver.heard["late"].events
    driver.arrive("late", order[1], pictures[order[1]])
    (heard,) = driver.finish("late")
    assert heard.tokens == expected.tokens
    ahead, (queue, prefill) = heard.events[0].ahead, heard.events[0].spans
    assert ahead
    assert {step.stage for step in ahead} == {"llm_prefill"}
    assert queue.end == prefill.start <= ahead[0].start
    assert all(step.start < step.end <= prefill.end for step in ahead)
    assert driver.loop.kv_tokens_used == 0


def test_nothing_begins_before_the_first_picture_that_is_missing(demo: Loaded) -> None:
    driver = Driver(demo)
    ids, pictures = prompt(driver, SIZES, QUESTION)
    driver.submit("late", ids, [absent(pictures[0]), *pictures[1:]])
    driver.stall()
    assert driver.loop.kv_tokens_used == starts(driver, ids, pictures)[0], "the words before it"
    driver.arrive("late", 0, pictures[0])
    assert driver.finish("late")[0].tokens == driver.answer(ids, GREEDY, *pictures).tokens


def test_it_gives_way_to_whoever_could_start_in_its_place(demo: Loaded) -> None:
    driver = Driver(demo, limits=BatchLimits(1, 512, 65536))
    ids, pictures = prompt(driver, SIZES, QUESTION)
    expected = driver.answer(ids, GREEDY, *pictures)
    text = driver.answer(text_prompt(driver))
    driver.submit("late", ids, [pictures[0], absent(pictures[1]), pictures[2]])
    driver.stall()
    driver.submit("text", text_prompt(driver))
    assert driver.finish("text")[0].tokens == text.tokens
    driver.stall()
    assert driver.loop.kv_tokens_used == starts(driver, ids, pictures)[1], "it began anew when nobody wanted its place"
    driver.submit("ready", ids, pictures)
    driver.arrive("late", 1, pictures[1])
    late, ready = driver.finish("late", "ready")
    assert late.tokens == ready.tokens == expected.tokens
    assert len(late.events[0].ahead) == 1, "what was given up has saved nothing"
    assert late.events[0].spans[1].end <= ready.events[0].spans[1].end, "it came first"


def test_what_is_kept_of_the_same_prompt_answers_when_all_pictures_are_there(demo: Loaded) -> None:
    calls: list[tuple[int, int]] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(demo.language, name)

        def prefill(self, *arguments: Any) -> torch.Tensor:
            calls.append(arguments[-2:])
            return demo.language.prefill(*arguments)

    driver = Driver(demo, language=Counting(), prefix_bytes_max=1 << 20)
    ids, pictures = prompt(driver, SIZES, QUESTION)
    expected = driver.answer(ids, GREEDY, *pictures)
    calls.clear()
    driver.submit("late", ids, [absent(pictures[0]), pictures[1], absent(pictures[2])])
    driver.stall()
    driver.arrive("late", 2, pictures[2])
    driver.stall()
    assert not driver.heard["late"].events
    driver.arrive("late", 0, pictures[0])
    (heard,) = driver.finish("late")
    assert heard.tokens == expected.tokens
    assert (calls, heard.finishes[-1].cached_tokens) == ([], len(ids))


def test_a_beginning_that_is_kept_is_not_prefilled_again(demo: Loaded) -> None:
    driver = Driver(demo, prefix_bytes_max=1 << 20)
    ids, pictures = prompt(driver, SIZES, QUESTION)
    other, _ = prompt(driver, SIZES, "what? hello")
    expected = driver.answer(other, GREEDY, *pictures)
    driver.answer(ids, GREEDY, *pictures)
    driver = Driver(demo, prefix_bytes_max=1 << 20, arena=driver.outbox.arena)
    driver.answer(ids, GREEDY, *pictures)
    driver.submit("late", other, [pictures[0], absent(pictures[1]), pictures[2]])
    driver.stall()
    driver.arrive("late", 1, pictures[1])
    (heard,) = driver.finish("late")
    assert heard.tokens == expected.tokens
    assert heard.finishes[-1].cached_tokens > starts(driver, ids, pictures)[2]
    assert heard.events[0].ahead == ()


def test_prompts_that_came_early_keep_nobody_out(demo: Loaded) -> None:
    driver = Driver(demo, limits=BatchLimits(1, 512, 65536), queue_depth_max=1)
    ids, pictures = prompt(driver, SIZES, QUESTION)
    expected = driver.answer(ids, GREEDY, *pictures)
    for name in ("early-1", "early-2", "early-3"):
        driver.submit(name, ids, [pictures[0], absent(pictures[1]), pictures[2]])
    driver.stall()
    failure = driver.heard["early-3"].failure
    assert failure is not None
    assert failure.error.code == "queue_full"
    driver.submit("ready", ids, pictures)
    driver.submit("text", text_prompt(driver))
    assert all(heard.finishes for heard in driver.finish("ready", "text"))
    for name in ("early-1", "early-2"):
        driver.arrive(name, 1, pictures[1])
    assert [heard.tokens for heard in driver.finish("early-1", "early-2")] == [expected.tokens] * 2


@pytest.mark.parametrize("begun", [False, True])
def test_cancelled_it_leaves_nothing(demo: Loaded, begun: bool) -> None:
    driver = Driver(demo)
    ids, pictures = prompt(driver, SIZES, QUESTION)
    driver.submit("late", ids, [pictures[0], absent(pictures[1]), pictures[2]])
    if begun:
        driver.stall()
    driver.cancel("late")
    driver.iterate()
    assert driver.heard["late"].cancelled == 1
    assert (driver.loop.kv_tokens_used, driver.loop.busy) == (0, False)
    driver.arrive("late", 1, pictures[1])
    assert driver.answer(text_prompt(driver)).finishes, "what comes too late is ignored"


def test_its_deadline_passes_while_nothing_else_is_to_do(demo: Loaded) -> None:
    driver = Driver(demo)
    ids, pictures = prompt(driver, SIZES, QUESTION)
    driver.submit("late", ids, [pictures[0], absent(pictures[1]), pictures[2]], deadline=now() + 0.5)
    (heard,) = driver.finish("late")
    assert heard.failure is not None
    assert heard.failure.error.code == "deadline_exceeded"
    assert (driver.loop.kv_tokens_used, driver.loop.busy) == (0, False)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda given: msgspec.structs.replace(given, rows=given.rows - 1),
        lambda given: msgspec.structs.replace(given, meta={"image_grid_thw": [1, 2, 3]}),
        absent,
        lambda given: msgspec.structs.replace(given, embeddings=msgspec.structs.replace(given.embeddings, tensors=())),
    ],
    ids=["other rows", "other meta", "still not there", "no tensors"],
)
def test_a_picture_that_is_not_the_announced_one_fails_alone(
    demo: Loaded, spoil: Callable[[PictureInput], PictureInput]
) -> None:
    driver = Driver(demo)
    ids, pictures = prompt(driver, SIZES, QUESTION)
    driver.submit("late", ids, [pictures[0], absent(pictures[1]), pictures[2]])
    driver.submit("good", ids, pictures)
    driver.iterate()
    driver.arrive("late", 1, spoil(pictures[1]))
    late, good = driver.finish("late", "good")
    assert late.failure is not None
    assert late.failure.error.code == "engine_failed"
    assert good.finishes
    assert (driver.loop.kv_tokens_used, driver.loop.busy) == (0, False)


def test_pictures_that_do_not_fit_the_prompt_fail_at_once(demo: Loaded) -> None:
    driver = Driver(demo)
    ids, pictures = prompt(driver, SIZES, QUESTION)
    driver.submit("late", ids, [pictures[0], absent(pictures[1])])
    (heard,) = driver.finish("late")
    assert heard.failure is not None
    assert heard.failure.error.code == "engine_failed"


@pytest.mark.parametrize("end", ["answered", "cancelled", "no place"])
def test_a_prompt_that_is_handed_on_brings_its_place_with_the_last_picture(demo: Loaded, end: str) -> None:
    pair = Pair(demo)
    first = pair.first
    ids, pictures = prompt(first, SIZES, QUESTION)
    expected = first.answer(ids, GREEDY, *pictures)
    work = Driver.work("late", ids, [pictures[0], absent(pictures[1]), pictures[2]])
    first.loop.submit(Prefill(work, now(), None))
    first.stall()
    assert first.loop.kv_tokens_used > 0
    if end == "cancelled":
        first.cancel("late")
        first.iterate()
    else:
        first.arrive("late", 1, pictures[1], pair.slot(work) if end == "answered" else None)
        first.finish("late")
    heard = first.heard["late"]
    assert heard.slot_free == (0 if end == "answered" else 1)
    assert not first.loop.busy
    assert bool(heard.failure) == (end == "no place")
    if heard.prefilled is not None:
        whole = Driver.work("late", ids, pictures)
        answer = pair.go_on(whole, heard.prefilled)
        assert answer.tokens == expected.tokens
        assert answer.events[0].ahead == heard.prefilled.ahead != ()
