"""What only several engine processes can promise, on two real ones and those that they become."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec
import pytest
import pytest_asyncio
from tests.contracts.bench import Bench

from foveate.core.errors import EngineDied
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.request import Sampling
from foveate.engines.embedded.split import SplitFleet
from foveate.engines.port import EngineEvent, EngineWork
from foveate.observe.records import Topology
from foveate.runtime.local.runtime import LocalRuntime

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

HELLO, SHORT = "Hello, who are you?", Sampling(4, temperature=0, ignore_eos=True)
ENDLESS = Sampling(3000, temperature=0, ignore_eos=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(runtime: LocalRuntime) -> AsyncIterator[Bench]:
    bench = Bench("fleet", runtime)
    await bench.engine.start()
    yield bench
    await bench.engine.stop(seconds_max=10)


def asking(bench: Bench, question: str, prepared: PreparedImage, image: EncodedImage, content: str) -> EngineWork:
    work = bench.work(question, prepared, images=[image], sampling=SHORT)
    return msgspec.structs.replace(work, pictures=[msgspec.structs.replace(work.pictures[0], content=content)])


async def test_the_same_picture_meets_its_kv(bench: Bench) -> None:
    """Each conversation goes on where its picture was prefilled, though requests come in turns and at once."""
    colors = {"red": (220, 30, 30), "blue": (30, 60, 220), "green": (25, 160, 30), "yellow": (245, 225, 20)}
    prepared = {name: bench.prepare(color) for name, color in colors.items()}
    images = {name: await bench.encode(one) for name, one in prepared.items()}

    async def ask(question: str, name: str) -> int:
        _, _, finishes = await bench.answer(asking(bench, question, prepared[name], images[name], name))
        return finishes[-1].cached_tokens

    assert all(tokens < 10 for tokens in await asyncio.gather(*(ask("What colour is it?", name) for name in colors)))
    for question in ("What shape is it?", "Describe it in a word, please."):
        for found in await asyncio.gather(*(ask(question, name) for name in colors)):
            assert found >= prepared["red"].rows


async def test_both_have_work(bench: Bench) -> None:
    streams = [bench.engine.generate(bench.work(HELLO, sampling=ENDLESS)) for _ in range(4)]
    for stream in streams:
        await anext(stream)
    assert [one.in_flight for one in bench.engine.report()] == [2, 2]
    for stream in streams:
        await stream.aclose()
    assert [(one.in_flight, one.outstanding_tokens) for one in bench.engine.report()] == [(0, 0.0), (0, 0.0)]


async def test_one_is_killed_and_the_other_goes_on(bench: Bench) -> None:
    """What the dead one held ends once; what the other holds is not disturbed, and new requests are answered at once."""
    streams = [bench.engine.generate(bench.work(HELLO, sampling=ENDLESS)) for _ in range(4)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    os.kill(bench.processes[0].worker.pid, signal.SIGKILL)  # type: ignore[union-attr]

    async def died(stream: AsyncGenerator[EngineEvent, None]) -> bool:
        async with aclosing(stream):
            try:
                for _ in range(200):  # more than the dead one may have sent that is not read yet
                    await anext(stream)
            except EngineDied:
                return True
            return False

    ends = [asyncio.ensure_future(died(stream)) for stream in streams]
    assert [await end for end in itertools.islice(asyncio.as_completed(ends), 2)] == [True, True]
    assert sum(end.done() for end in ends) == 2
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    for stream in streams:
        await stream.aclose()
    assert bench.engine.ready
    prepared = bench.prepare((220, 30, 30))
    image = await bench.encode(prepared)
    assert "red" in (await bench.answer(bench.work("What colour is it?", prepared, images=[image])))[0].lower()
    await asyncio.wait_for(bench.restarted.wait(), 60)
    assert [(one.usable, one.restarts) for one in bench.engine.report()] == [(True, 1), (True, 0)]


CHANGES: tuple[tuple[Topology, int | None, int | None, str], ...] = (
    ("e-p-d", 1, 1, "p d"),
    ("e-p-d", 1, 2, "p d d"),
    ("e-p-d", 2, 1, "p d p"),
    ("agg", None, None, "pd pd"),
)


async def test_it_is_split_and_whole_again_under_load(bench: Bench) -> None:
    """The same greedy answers all the while, none is lost, and nothing is left: no process, no room for K/V."""
    fleet = bench.engine
    assert isinstance(fleet, SplitFleet)
    prepared = bench.prepare((220, 30, 30))
    image = await bench.encode(prepared)

    def question(kind: int) -> EngineWork:
        return bench.work("What colour is it?", prepared, images=[image]) if kind else bench.work(HELLO * 8)

    wanted = [(await bench.answer(question(kind)))[0] for kind in (0, 1)]
    answered, over = 0, False

    async def client(kind: int) -> None:
        nonlocal answered
        while not over:
            assert (await bench.answer(question(kind)))[0] == wanted[kind]
            answered += 1

    restarts = fleet.restarts
    before = {one.worker.pid for one in bench.processes if one.worker is not None}  # type: ignore[attr-defined]
    async with asyncio.TaskGroup() as tasks:
        for kind in (0, 1, 1):
            tasks.create_task(client(kind))
        for topology, prefill, decode, roles in CHANGES:
            await fleet.change(topology, prefill=prefill, decode=decode)
            assert " ".join(one.role for one in fleet.report() if not one.leaving) == roles
            enough = answered + 9
            while answered < enough:
                await asyncio.sleep(0.02)
        over = True
    while any(one.leaving for one in fleet.report()):
        await asyncio.sleep(0.02)
    assert {one.worker.pid for one in bench.processes if one.worker is not None} == before  # type: ignore[attr-defined]
    assert fleet.restarts == restarts
    assert [(one.in_flight, one.outstanding_tokens) for one in fleet.report()] == [(0, 0.0)] * 2
    assert fleet.room.used_bytes == 0
    assert fleet.room.waiting == 0
