"""The engine's choices: admission within the KV capacity, fair chunks, allowed borders."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.decisions.batching import (
    SKIPS_MAX,
    BatchLimits,
    BatchView,
    Chunk,
    PromptView,
    choose_encode_batch,
    fits_ever,
    place_in_line,
    plan_step,
)

LIMITS = BatchLimits(sequences_max=4, chunk_tokens=100, kv_tokens_max=2000)


def view(waiting=(), prefilling=(), rows=0, row_tokens_max=0) -> BatchView:
    return BatchView(list(waiting), list(prefilling), rows, row_tokens_max)


def test_short_prompts_share_one_iteration() -> None:
    plan = plan_step(view([PromptView(30, 10), PromptView(40, 10), PromptView(20, 10)]), LIMITS)
    assert plan.admit == (0, 1, 2)
    assert sorted(plan.chunks, key=lambda chunk: chunk.index) == [Chunk(0, 0, 30), Chunk(1, 0, 40), Chunk(2, 0, 20)]


def test_a_long_prompt_is_cut() -> None:
    assert plan_step(view(prefilling=[PromptView(250, 10, done=100)]), LIMITS).chunks == (Chunk(0, 100, 200),)
    assert plan_step(view(prefilling=[PromptView(250, 10, done=200)]), LIMITS).chunks == (Chunk(0, 200, 250),)


def test_a_short_prompt_overtakes_a_long_one_that_gets_the_rest() -> None:
    plan = plan_step(view([PromptView(20, 10)], [PromptView(500, 10, done=100)]), LIMITS)
    assert plan.chunks == (Chunk(1, 0, 20), Chunk(0, 100, 180))


def test_an_overtaken_prompt_goes_first_in_the_end() -> None:
    plan = plan_step(view([PromptView(100, 10)], [PromptView(900, 10, skipped=SKIPS_MAX)]), LIMITS)
    assert plan.chunks == (Chunk(0, 0, 100),)


def test_no_crumbs() -> None:
    """A leftover of 5 tokens is not spent on a part of a long prompt, but is on the end of one."""
    assert len(plan_step(view(prefilling=[PromptView(95, 10), PromptView(900, 10)]), LIMITS).chunks) == 1
    ending = PromptView(900, 10, done=895, skipped=0)
    assert len(plan_step(view(prefilling=[PromptView(95, 10, skipped=SKIPS_MAX), ending]), LIMITS).chunks) == 2


def test_borders_are_kept() -> None:
    borders = [40, 90, 260, 300]
    ends = []
    done = 0
    while done < 300:
        chunk = plan_step(view(prefilling=[PromptView(300, 1, done=done, borders=borders)]), LIMITS).chunks[0]
        done = chunk.end
        ends.append(done)
    assert ends == [90, 260, 300], "the picture between 90 and 260 is never cut, though it exceeds the budget"


def test_a_prompt_without_inner_borders_is_one_chunk() -> None:
    assert plan_step(view([PromptView(300, 1, borders=[300])]), LIMITS).chunks == (Chunk(0, 0, 300),)
    assert plan_step(view([PromptView(300, 1, borders=[])]), LIMITS).chunks == (Chunk(0, 0, 300),)


def test_an_uncuttable_prompt_waits_for_its_own_iteration() -> None:
    plan = plan_step(view([PromptView(10, 1), PromptView(300, 1, borders=[300])]), LIMITS)
    assert plan.chunks == (Chunk(0, 0, 10),)


def test_admission_keeps_the_order_of_arrival() -> None:
    plan = plan_step(view([PromptView(900, 600), PromptView(5, 5)], rows=1, row_tokens_max=100), LIMITS)
    assert not plan.admit, "the small prompt does not overtake the one that waits for KV"


@pytest.mark.parametrize(("rows", "choices", "admit"), [(3, 1, 1), (3, 2, 0), (4, 1, 0), (0, 4, 1)])
def test_rows_are_bounded(rows: int, choices: int, admit: int) -> None:
    assert plan_step(view([PromptView(5, 5, choices)], rows=rows, row_tokens_max=10), LIMITS).admit == tuple(
        range(admit)
    )


@pytest.mark.parametrize(
    ("prompt", "fits"),
    [
        (PromptView(500, 1000), True),
        (PromptView(500, 1001), False),
        (PromptView(1, 1, 5), False),
        (PromptView(200, 250, 4), True),
    ],
)
def test_fits_ever(prompt: PromptView, fits: bool) -> None:
    assert fits_ever(prompt, LIMITS) is fits
    assert plan_step(view([prompt]), LIMITS).admit == ((0,) if fits else ())


HELD = PromptView(300, 10, ready=120, pictures=True)
"""Of its 300 tokens 120 stand before a picture that is not there."""


def test_a_held_prompt_is_prefilled_up_to_the_picture_that_is_missing() -> None:
    done, ends = 0, []
    while chunks := plan_step(view(prefilling=[msgspec.structs.replace(HELD, done=done)]), LIMITS).chunks:
        done = chunks[0].end
        ends.append(done)
    assert ends == [100, 120]
    assert plan_step(view(prefilling=[msgspec.structs.replace(HELD, done=120, ready=None)]), LIMITS).chunks


def test_what_was_recalled_beyond_a_missing_picture_is_no_chunk() -> None:
    assert not plan_step(view(prefilling=[msgspec.structs.replace(HELD, done=200)]), LIMITS).chunks


def test_held_prompts_keep_borders() -> None:
    held = PromptView(300, 1, ready=90, borders=[40, 90, 260, 300])
    assert plan_step(view(prefilling=[held]), LIMITS).chunks == (Chunk(0, 0, 90),)
    uncut = PromptView(400, 1, ready=260, borders=[40, 260, 300])
    assert plan_step(view(prefilling=[msgspec.structs.replace(uncut, done=40)]), LIMITS).chunks == (Chunk(0, 40, 260),)


def test_chunks_of_held_prompts_come_after_all_others() -> None:
    others = [PromptView(900, 10, done=850), PromptView(30, 10)]
    held = msgspec.structs.replace(HELD, done=110, skipped=SKIPS_MAX)
    assert plan_step(view(prefilling=[held, *others]), LIMITS).chunks == (
        Chunk(2, 0, 30),
        Chunk(1, 850, 900),
        Chunk(0, 110, 120),
    )
    assert plan_step(view(prefilling=[held, PromptView(900, 10)]), LIMITS).chunks == (Chunk(1, 0, 100),)


def test_a_held_prompt_starts_when_nobody_else_waits() -> None:
    assert plan_step(view([HELD]), LIMITS).admit == (0,)
    assert plan_step(view([HELD, PromptView(5, 5)]), LIMITS).admit == (0, 1)
    full = plan_step(view([HELD, PromptView(5, 5)], rows=3, row_tokens_max=10), LIMITS)
    assert full.admit == (1,), "the last row is for whom nothing holds up, though it came later"
    assert not plan_step(view([HELD, PromptView(900, 900)], rows=3, row_tokens_max=400), LIMITS).admit
    assert not plan_step(view([msgspec.structs.replace(HELD, ready=0)]), LIMITS).admit, (
        "it would hold a row for nothing"
    )


def test_held_prompts_give_way_and_no_more_of_them_than_it_takes() -> None:
    held = [msgspec.structs.replace(HELD, done=done) for done in (120, 60, 0)]
    plan = plan_step(view([PromptView(5, 5), PromptView(5, 5)], held, rows=1, row_tokens_max=10), LIMITS)
    assert (plan.admit, plan.gives_way) == ((0, 1), (2, 1))
    assert [chunk.index for chunk in plan.chunks] == [3, 4], (
        "who gives way has no chunk, and the first has all that it can have"
    )
    nothing = plan_step(view([PromptView(900, 900)], held[:1], rows=3, row_tokens_max=400), LIMITS)
    assert (nothing.admit, nothing.gives_way) == ((), ()), "giving way would not help"
    assert plan_step(view([HELD], held[:1]), LIMITS).gives_way == (), "not for one that waits for a picture too"


def test_held_pictures_make_room_for_pictures_within_their_share() -> None:
    ready = PromptView(5, 5, pictures=True)
    plan = plan_step(view([ready], [HELD, HELD, HELD]), LIMITS)
    assert (plan.admit, plan.gives_way) == ((0,), (2,))


held_prompts = st.builds(
    PromptView, prompt_tokens=st.just(300), tokens_max=st.integers(1, 100), ready=st.integers(0, 299)
)


@given(st.lists(st.builds(PromptView, prompt_tokens=st.integers(1, 400), tokens_max=st.integers(1, 100)), max_size=8),
       st.lists(held_prompts, max_size=8))  # fmt: skip
def test_held_prompts_delay_nobody(arrivals: list[PromptView], held: list[PromptView]) -> None:
    """Whatever waits for pictures, the others start and are prefilled in the same plans as without."""

    def run(held: list[PromptView]) -> list[list[tuple[int, int]]]:
        waiting, prefilling = [*held, *arrivals], list[PromptView]()
        steps: list[list[tuple[int, int]]] = []
        for _ in range(60):
            plan = plan_step(view(waiting, prefilling), LIMITS)
            ends = {chunk.index: chunk.end for chunk in plan.chunks}
            prompts = [*prefilling, *(waiting[place] for place in plan.admit)]
            back = [msgspec.structs.replace(prompts[index], done=0) for index in plan.gives_way]
            steps.append(
                [(prompts[index].prompt_tokens, end) for index, end in ends.items() if not prompts[index].held]
            )
            waiting = [*back, *(one for place, one in enumerate(waiting) if place not in plan.admit)]
            moved = [
                msgspec.structs.replace(prompt, done=ends[index], skipped=0)
                if index in ends
                else prompt
                if prompt.held
                else msgspec.structs.replace(prompt, skipped=prompt.skipped + 1)
                for index, prompt in enumerate(prompts)
                if index not in plan.gives_way
            ]
            prefilling = [prompt for prompt in moved if prompt.done < prompt.prompt_tokens]
        return steps

    assert run(held) == run([])


prompts = st.builds(
    PromptView,
    prompt_tokens=st.integers(1, 400),
    tokens_max=st.integers(1, 100),
    choices=st.integers(1, 3),
    pictures=st.booleans(),
)


@given(st.lists(prompts, max_size=12))
def test_every_prompt_that_fits_is_prefilled_and_no_limit_is_passed(arrivals: list[PromptView]) -> None:
    waiting = [prompt for prompt in arrivals if fits_ever(prompt, LIMITS)]
    total = len(waiting)
    prefilling: list[PromptView] = []
    finished = 0
    for _ in range(400):
        plan = plan_step(view(waiting, prefilling), LIMITS)
        prefilling += [waiting[place] for place in plan.admit]
        waiting = [prompt for place, prompt in enumerate(waiting) if place not in plan.admit]
        assert sum(prompt.choices for prompt in prefilling) <= LIMITS.sequences_max
        assert sum(chunk.end - chunk.start for chunk in plan.chunks) <= LIMITS.chunk_tokens
        assert bool(plan.chunks) == bool(prefilling)
        ends = {chunk.index: chunk.end for chunk in plan.chunks}
        assert all(chunk.start == prefilling[chunk.index].done < chunk.end for chunk in plan.chunks)
        moved = [
            msgspec.structs.replace(prompt, done=ends[index], skipped=0)
            if index in ends
            else msgspec.structs.replace(prompt, skipped=prompt.skipped + 1)
            for index, prompt in enumerate(prefilling)
        ]
        prefilling = [prompt for prompt in moved if prompt.done < prompt.prompt_tokens]
        finished += len(moved) - len(prefilling)
        assert all(prompt.skipped <= SKIPS_MAX + LIMITS.sequences_max for prompt in prefilling), "nobody starves"
    assert finished == total


def test_encode_batch_takes_the_oldest_and_its_like() -> None:
    assert choose_encode_batch(["a", "b", "a", "a"], 2) == (0, 2)
    assert choose_encode_batch(["b", "a", "a"], 8) == (0,)
    assert choose_encode_batch([], 8) == ()


@given(st.lists(st.booleans(), max_size=60))
def test_texts_and_pictures_take_turns_in_the_order_of_their_kind(arrivals: list[bool]) -> None:
    line: list[tuple[bool, int]] = []
    for number, text in enumerate(arrivals):
        line.insert(place_in_line([other for other, _ in line], text), (text, number))
    for kind in (True, False):
        assert [number for text, number in line if text is kind] == [
            number for number, text in enumerate(arrivals) if text is kind
        ]
    before = [text for text, _ in line]
    for place, text in enumerate(before):
        if text:
            assert before[:place].count(False) <= before[:place].count(True) + 1


def test_texts_that_keep_coming_do_not_keep_pictures_waiting() -> None:
    line = [False] * 5
    for started in range(9):
        line.insert(place_in_line(line, True), True)
        line.pop(0)
        assert line.count(False) == 5 - started // 2 - 1


def test_answers_about_pictures_leave_rows_to_texts_and_only_texts_pass_them() -> None:
    limits = BatchLimits(sequences_max=8, chunk_tokens=64, kv_tokens_max=10_000)
    picture, text = PromptView(5, 5, pictures=True), PromptView(5, 5)

    def admitted(*waiting: PromptView, picture_rows: int, rows: int) -> tuple[int, ...]:
        return plan_step(BatchView(waiting, [], rows, 10, picture_rows), limits).admit

    assert admitted(picture, picture, text, picture, text, picture_rows=5, rows=5) == (0, 2, 4)
    assert admitted(picture, text, text, text, picture_rows=6, rows=6) == (1, 2)
    assert admitted(picture, picture_rows=0, rows=7) == (0,)
    assert admitted(PromptView(5, 5, 8, pictures=True), text, picture_rows=0, rows=0) == (0,)
    assert admitted(PromptView(5, 5, 8, pictures=True), text, picture_rows=1, rows=1) == (1,)
