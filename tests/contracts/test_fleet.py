"""What only several engine processes can promise, on two real ones."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from tests.contracts.bench import Bench

from foveate.core.errors import EngineDied
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.request import Sampling
from foveate.engines.port import EngineEvent, EngineWork
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
        try:
            async for _ in stream:
                pass
        except EngineDied:
            return True
        return False

    assert sorted(await asyncio.gather(*map(died, streams))) == [False, False, True, True]
    assert bench.engine.ready
    prepared = bench.prepare((220, 30, 30))
    image = await bench.encode(prepared)
    assert "red" in (await bench.answer(bench.work("What colour is it?", prepared, images=[image])))[0].lower()
    await asyncio.wait_for(bench.restarted.wait(), 60)
    assert [(one.usable, one.restarts) for one in bench.engine.report()] == [(True, 1), (True, 0)]
