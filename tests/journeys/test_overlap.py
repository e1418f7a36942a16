"""Prefill that begins while later pictures of a request are still encoded, on real workers; the encoder holds back what a test says."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import pytest
from blake3 import blake3
from tests.journeys.asking import BLUE, RED, Answered, ask, data_of, picture, request, settled

from foveate.core.errors import EncodeFailed, EngineDied, QueueFull
from foveate.core.media import DataRef, EncodedImage, PreparedImage
from foveate.core.memory import Slot
from foveate.core.request import Request
from foveate.encoders.port import UNKNOWN, Purpose
from foveate.engines.arrivals import Arrivals
from foveate.engines.fleet import Fleet
from foveate.engines.port import EngineEvent, EngineWork
from foveate.journey.roll_out import RollOut
from foveate.journey.service import Journey

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
BOTH = "Describe both images."
SAID = "First image: a red circle. Second image: a blue circle."


class HoldingEncoder:
    """The service's encoder, which does not begin with some contents before it is told to."""

    def __init__(self, service: Journey) -> None:
        self._encoder = service.tools.roll_out.stable.encoder
        self._held: dict[str, asyncio.Future[None]] = {}
        self.reached = asyncio.Event()
        """A picture that is held is otherwise ready to be encoded."""

    def hold(self, ref: DataRef) -> asyncio.Future[None]:
        """Hold a picture back until what is returned is done, or fails."""
        future = self._held[blake3(data_of(ref)).hexdigest()] = asyncio.get_running_loop().create_future()
        return future

    async def encode(
        self, prepared: PreparedImage, out: Slot, *, deadline: float, purpose: Purpose = UNKNOWN
    ) -> EncodedImage:
        held = self._held.get(purpose.content)
        if held is not None:
            self.reached.set()
            await asyncio.shield(held)
        return await self._encoder.encode(prepared, out, deadline=deadline, purpose=purpose)


class Bench:
    """A journey over the service's workers with an encoder that holds back, and what it takes to look at its engine."""

    def __init__(self, service: Journey, *, overlap: bool = True) -> None:
        self.encoder = HoldingEncoder(service)
        serving = dataclasses.replace(service.tools.roll_out.stable, encoder=self.encoder)
        limits = dataclasses.replace(service.tools.limits, prefill_overlap=overlap, engine_wait_seconds=60.0)
        self.journey = Journey(
            dataclasses.replace(service.tools, roll_out=RollOut(serving), limits=limits), models=service.models
        )
        assert isinstance(serving.engine, Fleet)
        self.engine = serving.engine
        self.service = service

    @property
    def in_engine(self) -> int:
        return sum(one.in_flight for one in self.engine.report())

    async def begun(self) -> None:
        """Wait until the engine holds the request, and has had time for its first chunk: it answered one that came later."""
        while not self.in_engine:
            await asyncio.sleep(0.001)
        assert (await ask(self.service, request(text="Hello!"))).text.startswith("Hello!")


async def eventually(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


async def two(bench: Bench) -> tuple[Request, asyncio.Future[None], asyncio.Task[Answered]]:
    """Ask about two pictures of which the second is held back."""
    first, second = picture(RED), picture(BLUE)
    held = bench.encoder.hold(second)
    asked = request(first, second, text=BOTH)
    task = asyncio.ensure_future(ask(bench.journey, asked))
    await bench.encoder.reached.wait()
    return asked, held, task


async def test_it_begins_before_the_last_picture_is_encoded_and_says_the_same(service: Journey) -> None:
    bench = Bench(service)
    _, held, task = await two(bench)
    await bench.begun()
    assert not task.done()
    held.set_result(None)
    answered = await task
    alone = await ask(Bench(service, overlap=False).journey, request(picture(RED), picture(BLUE), text=BOTH))
    assert (answered.text, answered.tokens) == (alone.text, alone.tokens)
    assert answered.text == SAID
    assert "prefill_overlap" not in alone.timing
    assert 0 < answered.timing["prefill_overlap"] < answered.timing["vision_encode"] + answered.timing["encoder_queue"]
    for one in (answered, alone):
        beside = ("ttft", "prefill_overlap")
        assert sum(ms for name, ms in one.timing.items() if name not in beside) == pytest.approx(
            one.timing["ttft"], abs=0.002
        )
    await settled(service)


@pytest.mark.parametrize("why", ["off", "the first is missing"])
async def test_it_waits_for_all_pictures(service: Journey, why: str) -> None:
    bench = Bench(service, overlap=why != "off")
    refs = [picture(RED), picture(BLUE)]
    held = bench.encoder.hold(refs[1 if why == "off" else 0])
    cached = service.tools.encoder_cache.stats().entries
    task = asyncio.ensure_future(ask(bench.journey, request(*refs, text=BOTH)))
    await bench.encoder.reached.wait()
    await eventually(lambda: service.tools.encoder_cache.stats().entries > cached)
    await ask(service, request(text="Hello!"))
    assert bench.in_engine == 0
    held.set_result(None)
    answered = await task
    assert answered.text == SAID
    assert "prefill_overlap" not in answered.timing


async def fail(bench: Bench, held: asyncio.Future[None], task: asyncio.Task[Answered]) -> None:
    held.set_exception(EncodeFailed(detail="as the test says"))
    with pytest.raises(EncodeFailed) as caught:
        await task
    assert (caught.value.part, caught.value.param) == (1, "messages[0].content[1].image_url")


async def leave(bench: Bench, held: asyncio.Future[None], task: asyncio.Task[Answered]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    held.set_result(None)


@pytest.mark.parametrize("end", [fail, leave])
async def test_what_ends_a_request_that_has_begun_leaves_nothing(
    service: Journey, end: Callable[[Bench, asyncio.Future[None], asyncio.Task[Answered]], Awaitable[None]]
) -> None:
    bench = Bench(service)
    _, held, task = await two(bench)
    await bench.begun()
    await end(bench, held, task)
    while bench.in_engine:  # it lets go between two steps
        await asyncio.sleep(0.01)
    await settled(service)
    assert (await ask(service, request(picture(RED)))).text == "A red circle."


class FullForEarly:
    """An engine without a place for prompts whose pictures are not all there; it may say so only when they are."""

    def __init__(self, engine: Fleet, *, late: bool) -> None:
        self._engine = engine
        self._late = late
        self.refused = asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def generate(self, work: EngineWork, arrivals: Arrivals | None = None) -> AsyncGenerator[EngineEvent, None]:
        if arrivals is not None and not arrivals.complete:
            self.refused.set()
            if self._late:
                await asyncio.wait({arrivals.completed})
            raise QueueFull(detail="as the test says")
        async with aclosing(self._engine.generate(work, arrivals)) as events:
            async for event in events:
                yield event


@pytest.mark.parametrize("late", [False, True])
async def test_one_that_came_early_and_found_no_place_comes_again(service: Journey, late: bool) -> None:
    bench = Bench(service)
    engine = FullForEarly(bench.engine, late=late)
    serving = dataclasses.replace(bench.journey.tools.roll_out.stable, engine=engine)
    tools = dataclasses.replace(bench.journey.tools, roll_out=RollOut(serving))
    bench.journey = Journey(tools, models=service.models)
    _, held, task = await two(bench)
    await engine.refused.wait()
    assert not task.done()
    held.set_result(None)
    assert (await task).text == SAID
    await settled(service)


class Ending:
    """An engine whose processes end with whatever they are given: so many with each try."""

    def __init__(self, engine: Fleet, deaths: int) -> None:
        self._engine = engine
        self._deaths = deaths
        self.asked: list[int] = []
        """How many had ended before, of each try."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def generate(self, work: EngineWork, arrivals: Arrivals | None = None) -> AsyncGenerator[EngineEvent, None]:
        self.asked.append(work.deaths)
        error = EngineDied(detail="as the test says")
        error.deaths = work.deaths + self._deaths
        raise error
        yield


@pytest.mark.parametrize(("deaths", "tries"), [(1, [0, 1]), (2, [0])])
async def test_a_request_that_two_processes_ended_with_is_not_tried_again(
    service: Journey, deaths: int, tries: list[int]
) -> None:
    engine = Ending(Bench(service).engine, deaths)
    serving = dataclasses.replace(service.tools.roll_out.stable, engine=engine)
    journey = Journey(dataclasses.replace(service.tools, roll_out=RollOut(serving)), models=service.models)
    with pytest.raises(EngineDied):
        await ask(journey, request(text="Hello!"))
    assert engine.asked == tries
    await settled(service)


async def test_an_engine_that_dies_in_between_costs_nothing(service: Journey) -> None:
    bench = Bench(service)
    _, held, task = await two(bench)
    await bench.begun()
    worker = bench.engine.engines[0].worker
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    await eventually(lambda: not bench.engine.ready)
    held.set_result(None)
    assert (await task).text == SAID
    assert bench.in_engine == 0
    await settled(service)


async def test_requests_that_share_a_picture_begin_both(service: Journey) -> None:
    """The second hears of what the first has begun to make."""
    bench = Bench(service)
    asked, held, task = await two(bench)
    refs = [part.ref for part in asked.images]
    other = asyncio.ensure_future(ask(bench.journey, request(*refs, text=BOTH)))
    await eventually(lambda: bench.in_engine == 2)
    held.set_result(None)
    assert [(await each).text for each in (task, other)] == [SAID, SAID]
    await settled(service)
