"""What every engine promises (:mod:`foveate.engines.port`), on the real runtime and a real process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from tests.contracts.bench import ENGINES, GREEDY, MODEL, Bench

from foveate.core.clock import now
from foveate.core.errors import EncodeFailed, EngineFailed, EngineUnavailable, FoveateError
from foveate.core.request import Sampling
from foveate.engines.arrivals import OVERLAP, Arrivals
from foveate.engines.port import NOT_THERE, EngineWork, TokenEvent
from foveate.runtime.local.process import LocalWorker
from foveate.runtime.local.runtime import LocalRuntime


def drawn(tokens: list[TokenEvent]) -> dict[int, list[int]]:
    """Return each choice's tokens."""
    return {
        choice: [token for event in tokens if event.choice == choice for token in event.token_ids] for choice in (0, 1)
    }


ALONE = "vllm, split"
"""Tested in test_vllm_split.py, with what else is asked of its processes."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[name for name in ENGINES if name != ALONE])
async def bench(request: pytest.FixtureRequest, runtime: LocalRuntime) -> AsyncIterator[Bench]:
    bench = Bench(request.param, runtime)
    await bench.engine.start()
    yield bench
    await bench.engine.stop(seconds_max=5)
    ended = [process.worker._how() for process in bench.processes if isinstance(process.worker, LocalWorker)]
    assert ended == ["exit code 0"] * len(bench.processes), "it stopped by itself"


# The first start imports torch and transformers, which takes most of a minute on a busy machine.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
HELLO = "Hello, who are you?"


async def test_it_says_what_it_is(bench: Bench) -> None:
    assert bench.engine.ready
    info = bench.engine.info
    assert info.model == MODEL.name
    assert info.context_tokens_max == bench.prompts.context_tokens_max
    assert len(info.encoder_version) >= 16
    assert info.embedding_bytes_per_row > 0


async def test_an_answer_about_a_picture_with_every_stage_timed(bench: Bench) -> None:
    prepared = bench.prepare((220, 30, 30))
    called = now()
    image = await bench.encode(prepared)
    assert [span.stage for span in image.spans] == ["encoder_queue", "vision_encode", "embedding_transfer"]
    assert called <= image.spans[0].start
    assert all(span.start <= span.end <= now() for span in image.spans)
    asked = now()
    text, tokens, finishes = await bench.answer(bench.work("What colour is it?", prepared, images=[image]))
    assert "red" in text.lower()
    stages = [span.stage for span in tokens[0].spans]
    assert stages == ["llm_queue", "llm_prefill"] * (len(stages) // 2)
    assert stages
    assert asked <= tokens[0].spans[0].start
    (finish,) = finishes
    assert finish.reason == "stop"
    assert finish.last
    assert finish.output_tokens == sum(len(event.token_ids) for event in tokens)


async def test_the_same_answer_alone_and_at_once(bench: Bench) -> None:
    prepared = [bench.prepare(color) for color in ((220, 30, 30), (30, 60, 220))]
    images = await asyncio.gather(*(bench.encode(one) for one in prepared))
    questions = [
        lambda: bench.work("What colour is it?", prepared[0], images=images[:1]),
        lambda: bench.work(HELLO),
        lambda: bench.work("What shape is it?", prepared[1], images=images[1:]),
    ]
    alone = [(await bench.answer(ask()))[0] for ask in questions]
    together = await asyncio.gather(*(bench.answer(ask()) for ask in questions))
    assert [text for text, _, _ in together] == alone
    assert len(set(alone)) == 3


async def test_several_choices_end_with_the_last(bench: Bench) -> None:
    sampling = Sampling(6, temperature=1.5, seed=1, n=2, ignore_eos=True, logprobs=2)
    _, tokens, finishes = await bench.answer(bench.work(HELLO, sampling=sampling))
    assert {event.choice for event in tokens} == {0, 1}
    assert [(finish.reason, finish.output_tokens, finish.last) for finish in finishes] == [
        ("length", 6, False),
        ("length", 6, True),
    ]
    assert all(len(event.steps) == len(event.token_ids) for event in tokens)
    _, again, _ = await bench.answer(bench.work(HELLO, sampling=sampling))
    assert drawn(again) == drawn(tokens)


async def test_stop_strings(bench: Bench) -> None:
    text, _, _ = await bench.answer(bench.work(HELLO))
    stopped, _, finishes = await bench.answer(
        bench.work(HELLO, sampling=msgspec.structs.replace(GREEDY, stop=(text[5:9],)))
    )
    assert (stopped, finishes[0].reason) == (text[: text.index(text[5:9])], "stop")


async def test_closing_early_frees_the_place_at_once(bench: Bench) -> None:
    endless = Sampling(3000, temperature=0, ignore_eos=True)
    for _ in range(12):  # more than may be open together
        async with contextlib.aclosing(bench.engine.generate(bench.work(HELLO, sampling=endless))) as events:
            assert isinstance(await anext(events), TokenEvent)
    assert (await bench.answer(bench.work(HELLO)))[2]


async def test_a_full_queue_is_refused_and_others_are_answered(bench: Bench) -> None:
    count = 8 * len(bench.processes)
    # So long that none ends while those that one process refuses are offered to the next.
    works = [bench.work(HELLO, sampling=Sampling(400, temperature=0, ignore_eos=True)) for _ in range(count)]
    results = await asyncio.gather(*(bench.answer(work) for work in works), return_exceptions=True)
    refused = [result for result in results if isinstance(result, FoveateError)]
    assert {error.code for error in refused} == {"queue_full"}
    assert len(results) - len(refused) >= count // 2, "two rows and two places"


async def test_a_deadline_that_passes(bench: Bench) -> None:
    work = bench.work(HELLO, sampling=Sampling(3000, temperature=0, ignore_eos=True))
    with pytest.raises(FoveateError) as raised:
        await bench.answer(msgspec.structs.replace(work, deadline=now() + 0.3))
    assert raised.value.code == "deadline_exceeded"


async def test_bad_pictures_fail_alone(bench: Bench) -> None:
    prepared = bench.prepare((220, 30, 30))
    image = await bench.encode(prepared)
    bad_inputs = msgspec.structs.replace(prepared, rows=prepared.rows + 1)
    wrong = msgspec.structs.replace(image, rows=image.rows - 1)
    results = await asyncio.gather(
        bench.encode(bad_inputs),
        bench.answer(bench.work("What colour is it?", prepared, images=[wrong])),
        bench.answer(bench.work("What colour is it?", prepared, images=[image])),
        return_exceptions=True,
    )
    assert isinstance(results[0], EncodeFailed)
    assert isinstance(results[1], EngineFailed)
    assert "red" in results[2][0].lower()


async def test_a_dropped_request_leaves_nothing_wrong_under_its_picture_s_name(bench: Bench) -> None:
    """As soon as it is closed the slot is another's, whatever the engine was about to do."""
    prepared = [bench.prepare(color) for color in ((220, 30, 30), (30, 60, 220))]
    red, blue = [await bench.encode(one) for one in prepared]
    slot = bench.arena.view(red.embeddings.slot)
    mine, another = bytes(slot), bytes(bench.arena.view(blue.embeddings.slot))
    for attempt in range(8):
        events = bench.engine.generate(
            bench.work(f"{attempt}. What colour is it?", prepared[0], images=[red], contents=["red disc"])
        )
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.002 * attempt)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await events.aclose()
        slot[:] = another
        await asyncio.sleep(0.03)
        slot[:] = mine
    text, _, _ = await bench.answer(bench.work("What colour is it?", prepared[0], images=[red], contents=["red disc"]))
    assert "red" in text.lower()


async def begun_without(bench: Bench, *pictures: int) -> tuple[EngineWork, EngineWork, Arrivals]:
    """Return a question about two pictures, the same with these missing, and what brings them."""
    prepared = [bench.prepare(color) for color in ((220, 30, 30), (30, 60, 220))]
    images = [await bench.encode(one) for one in prepared]
    whole = bench.work("Describe both images.", *prepared, images=images)
    given = [
        msgspec.structs.replace(picture, embeddings=NOT_THERE) if place in pictures else picture
        for place, picture in enumerate(whole.pictures)
    ]
    part = msgspec.structs.replace(whole, request_id=f"{whole.request_id}, in parts", pictures=given)
    return whole, part, Arrivals(set(pictures))


async def until_prefilled(bench: Bench) -> None:
    """Wait until each engine process has had time for a chunk of whatever else it holds: it answered others who came later."""
    for _ in range(2):
        await asyncio.gather(*(bench.answer(bench.work(HELLO)) for _ in bench.processes))


@pytest.mark.parametrize("missing", [(1,), (0,), (0, 1)], ids=str)
async def test_pictures_that_come_later_make_no_other_answer(bench: Bench, missing: tuple[int, ...]) -> None:
    if OVERLAP not in bench.engine.features:
        pytest.skip("it is given all pictures at once")
    whole, part, arrivals = await begun_without(bench, *missing)
    expected, tokens, _ = await bench.answer(whole)
    assert tokens[0].ahead == ()
    events = bench.engine.generate(part, arrivals)
    first = asyncio.ensure_future(anext(events))
    await until_prefilled(bench)
    assert not first.done()
    came = now()
    for place in reversed(missing):
        arrivals.put(place, whole.pictures[place])
    begin = await first
    assert isinstance(begin, TokenEvent)
    text = begin.text + "".join([event.text async for event in events if isinstance(event, TokenEvent)])
    assert text == expected
    if bench.name != "fleet":  # there the other process may have answered all that came later
        assert begin.ahead, "prefill began before the last picture was there"
        assert begin.ahead[0].start < came


@pytest.mark.parametrize("closed", ["before", "between", "after"])
async def test_closed_while_pictures_are_missing_it_leaves_nothing(bench: Bench, closed: str) -> None:
    if OVERLAP not in bench.engine.features:
        pytest.skip("it is given all pictures at once")
    whole, part, _ = await begun_without(bench, 0, 1)
    for _ in range(12):  # more than may be open together
        work = msgspec.structs.replace(part, request_id=bench.work(HELLO).request_id)
        arrivals = Arrivals({0, 1})
        events = bench.engine.generate(work, arrivals)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        if closed != "before":
            arrivals.put(0, whole.pictures[0])
            await asyncio.sleep(0.01)
        if closed == "after":
            arrivals.put(1, whole.pictures[1])
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await events.aclose()
        if closed != "after":
            arrivals.put(1, whole.pictures[1])  # nobody hears it any more
    assert (await bench.answer(whole))[0]


async def test_cancelling_encodings_is_clean(bench: Bench) -> None:
    prepared = bench.prepare((220, 30, 30))
    tasks = [asyncio.ensure_future(bench.encode(prepared)) for _ in range(6)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert all(
        isinstance(result, asyncio.CancelledError) for result in await asyncio.gather(*tasks, return_exceptions=True)
    )
    assert (await bench.encode(prepared)).rows == prepared.rows


async def test_killed_it_ends_what_is_open_and_answers_again(bench: Bench) -> None:
    """Last: every process is another one afterwards."""
    endless = Sampling(3000, temperature=0, ignore_eos=True)
    events = bench.engine.generate(bench.work(HELLO, sampling=endless))
    await anext(events)
    waiting = asyncio.ensure_future(bench.answer(bench.work(HELLO, sampling=endless)))
    await asyncio.sleep(0)
    for process in bench.processes:
        os.kill(process.worker.pid, signal.SIGKILL)
    with pytest.raises(EngineFailed):
        async for _ in events:
            pass
    with pytest.raises(EngineFailed):
        await waiting
    assert not bench.engine.ready
    with pytest.raises(EngineUnavailable):
        await bench.answer(bench.work(HELLO))
    await asyncio.wait_for(bench.restarted.wait(), 60)
    assert bench.engine.ready
    assert bench.engine.restarts == len(bench.processes)
    assert (await bench.answer(bench.work(HELLO)))[0]
