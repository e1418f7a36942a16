"""The gateway's side of the engine, against a worker that the test plays."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.engines.bench import Bench, late
from tests.unit.engines.played import ENCODED, INFO, PREPARED

from foveate.core.clock import now
from foveate.core.errors import (
    DeadlineExceeded,
    EncodeFailed,
    EngineDied,
    EngineFailed,
    EngineUnavailable,
    QueueFull,
    StartupError,
)
from foveate.core.media import EncodedImage
from foveate.core.memory import Slot
from foveate.core.request import Sampling
from foveate.encoders.messages import CancelEncode, Encode, EncodeBegun, EncodeDone, EncodeRejected
from foveate.engines import process_client
from foveate.engines.arrivals import Arrivals
from foveate.engines.messages import Cancel, Cancelled, PictureReady
from foveate.engines.port import EngineWork, FailEvent, FinishEvent, TokenEvent


async def test_start_tells_what_it_is_and_what_it_loads(bench: Bench) -> None:
    assert bench.engine.ready
    assert bench.engine.info == INFO
    assert bench.lines == ["loading"]
    assert bench.worker.spec.title == "foveate: engine 0"
    assert bench.worker.spec.threads == 2


async def test_before_the_start_nothing_can_be_asked() -> None:
    engine = Bench().engine
    assert not engine.ready
    with pytest.raises(EngineUnavailable):
        engine.info  # noqa: B018
    with pytest.raises(EngineUnavailable):
        await anext(engine.generate(EngineWork("r", [1], [], Sampling(5), now() + 60)))
    with pytest.raises(EngineUnavailable):
        await engine.encode(PREPARED, Slot(0, 64), deadline=now() + 5)


async def test_events_reach_their_request_and_end_with_the_last(bench: Bench) -> None:
    a, first_a = await bench.generating("a")
    b, first_b = await bench.generating("b")
    bench.worker.say(TokenEvent("b", 0, "B", [2]))
    bench.worker.say(TokenEvent("a", 0, "A", [1]))
    bench.worker.say(FinishEvent("a", 1, "stop", 1, last=False))
    bench.worker.say(FinishEvent("a", 0, "stop", 1, last=True))
    bench.worker.say(TokenEvent("nobody", 0, "x", [1]))
    assert (await first_a).text == "A"
    assert [event.last async for event in a] == [False, True]
    assert (await first_b).text == "B"
    await b.aclose()
    assert await bench.worker.sent.get() == Cancel("b")
    assert bench.worker.sent.empty(), "what has ended is not cancelled"


async def test_pictures_that_come_later_are_passed_on(bench: Bench) -> None:
    work = EngineWork("r", [1], late(True, False, False, False), Sampling(5), now() + 60)
    arrivals = Arrivals({1, 2, 3})
    whole = late(True, True, True, True)
    arrivals.put(3, whole[3])
    stream = bench.engine.generate(work, arrivals)
    waiting = asyncio.ensure_future(anext(stream))
    message = await bench.worker.sent.get()
    assert [picture.there for picture in message.work.pictures] == [True, False, False, True]
    arrivals.put(2, whole[2])
    assert await bench.worker.sent.get() == PictureReady("r", 2, whole[2])
    assert not arrivals.complete
    bench.worker.kill()
    with pytest.raises(EngineDied):
        await waiting
    arrivals.put(1, whole[1])
    await asyncio.wait_for(bench.restarted.wait(), 5)
    assert arrivals.complete
    again = asyncio.ensure_future(anext(bench.engine.generate(work, arrivals)))
    assert (await bench.worker.sent.get()).work.pictures == whole, "another try is given all that came"
    bench.worker.say(TokenEvent("r", 0, "A", [1]))
    await again


async def test_closing_early_cancels(bench: Bench) -> None:
    _, waiting = await bench.generating()
    waiting.cancel()
    assert await bench.worker.sent.get() == Cancel("r")
    waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done(), "its pictures' slots may be read until the process says otherwise"
    bench.worker.say(Cancelled("r"))
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_closing_a_stream_that_has_begun_waits_for_nothing(bench: Bench) -> None:
    stream, first = await bench.generating()
    bench.worker.say(TokenEvent("r", 0, "A", [1]))
    await first
    await stream.aclose()
    assert await bench.worker.sent.get() == Cancel("r")


@pytest.mark.parametrize("end", ["finish", "fail", "death"])
async def test_closing_early_ends_with_whatever_ends_the_request(bench: Bench, end: str) -> None:
    _, waiting = await bench.generating()
    waiting.cancel()
    await bench.worker.sent.get()
    match end:
        case "finish":
            bench.worker.say(TokenEvent("r", 0, "A", [1]))
            bench.worker.say(FinishEvent("r", 0, "stop", 1, last=True))
        case "fail":
            bench.worker.say(FailEvent("r", QueueFull(detail="full").record()))
        case _:
            bench.worker.kill()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_submission_is_timed_from_the_call(bench: Bench) -> None:
    stream = bench.generate()
    called = now()
    task = asyncio.ensure_future(anext(stream))
    assert (await bench.worker.sent.get()).submitted_at <= called
    task.cancel()


async def test_failures_are_raised(bench: Bench) -> None:
    _, waiting = await bench.generating()
    bench.worker.say(FailEvent("r", QueueFull(detail="full").record()))
    with pytest.raises(QueueFull, match="full"):
        await waiting
    assert bench.worker.sent.empty()


async def test_a_process_that_answers_nothing_is_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_client, "TICK_SECONDS", 0.002)
    _, waiting = await bench.generating()
    await asyncio.sleep(0.6)
    assert not waiting.done(), "it answers pings, whatever else it does"
    bench.worker.hangs = True
    with pytest.raises(EngineDied):
        await waiting
    await asyncio.wait_for(bench.restarted.wait(), 5)
    assert bench.engine.ready


async def test_an_id_is_open_once(bench: Bench) -> None:
    _, waiting = await bench.generating()
    with pytest.raises(ValueError, match="open already"):
        await anext(bench.generate())
    bench.worker.say(TokenEvent("r", 0, "still", [1]))
    assert (await waiting).text == "still"


async def test_death_ends_what_is_open_and_the_engine_comes_back(bench: Bench) -> None:
    _, waiting = await bench.generating("before")
    encoding = asyncio.ensure_future(bench.engine.encode(PREPARED, Slot(0, 64), deadline=now() + 60))
    await bench.worker.sent.get()
    bench.runtime.starts_that_fail = 2
    bench.worker.kill()
    assert not bench.engine.ready
    with pytest.raises(EngineFailed):
        await waiting
    with pytest.raises(EngineUnavailable):
        await encoding
    with pytest.raises(EngineUnavailable):
        await anext(bench.generate())
    await asyncio.wait_for(bench.restarted.wait(), 30)
    assert bench.engine.ready
    assert bench.engine.restarts == 3, "two starts failed"
    _, waiting = await bench.generating("after")
    bench.worker.say(TokenEvent("after", 0, "back", [1]))
    assert (await waiting).text == "back"


async def test_death_after_the_first_token(bench: Bench) -> None:
    stream, waiting = await bench.generating()
    bench.worker.say(TokenEvent("r", 0, "one", [1]))
    await waiting
    bench.worker.kill()
    with pytest.raises(EngineFailed):
        await anext(stream)


async def test_stop_ends_what_is_open_and_does_not_restart(bench: Bench) -> None:
    _, waiting = await bench.generating()
    await bench.engine.stop(seconds_max=1)
    with pytest.raises(EngineFailed):
        await waiting
    assert len(bench.runtime.workers) == 1
    assert not bench.engine.ready


async def test_stop_while_restarting(bench: Bench) -> None:
    bench.runtime.starts_that_fail = 10**6
    bench.worker.kill()
    await asyncio.wait_for(bench.runtime.another.wait(), 30)
    await bench.engine.stop(seconds_max=1)
    count = len(bench.runtime.workers)
    await asyncio.sleep(0.1)
    assert len(bench.runtime.workers) == count


async def _encoding(bench: Bench, seconds: float = 60) -> tuple[asyncio.Task[EncodedImage], int]:
    task = asyncio.ensure_future(bench.engine.encode(PREPARED, Slot(0, 64), deadline=now() + seconds))
    message = await bench.worker.sent.get()
    assert isinstance(message, Encode)
    return task, message.job_id


async def test_encode(bench: Bench) -> None:
    first, first_id = await _encoding(bench)
    second, second_id = await _encoding(bench)
    bench.worker.say(EncodeRejected(second_id, EncodeFailed(detail="odd").record()))
    bench.worker.say(EncodeDone(first_id, ENCODED))
    assert await first == ENCODED
    with pytest.raises(EncodeFailed, match="odd"):
        await second
    assert bench.worker.sent.empty()


async def test_what_waits_and_what_runs_is_told(bench: Bench) -> None:
    (first, first_id), (second, second_id) = await _encoding(bench), await _encoding(bench)
    assert bench.load.encoder_waiting == 2
    bench.worker.say(EncodeBegun([first_id]))
    assert bench.load.encoder_waiting == 1
    assert bench.load.encoders_busy() > 0
    bench.worker.say(EncodeDone(first_id, ENCODED))
    bench.worker.say(EncodeRejected(second_id, EncodeFailed().record()))
    await asyncio.wait((first, second))
    assert isinstance(second.exception(), EncodeFailed)
    assert bench.load.encoder_waiting == 0
    stream, event = await bench.generating("a")
    assert (bench.load.llm_waiting, bench.load.llm_running) == (1, 0)
    bench.worker.say(TokenEvent("a", 0, "x", [1]))
    await event
    assert (bench.load.llm_waiting, bench.load.llm_running) == (0, 1)
    await stream.aclose()
    assert await bench.worker.sent.get() == Cancel("a")
    assert (bench.load.llm_waiting, bench.load.llm_running) == (0, 0)
    (third, _), (other, waits) = await _encoding(bench), await bench.generating("b")
    bench.worker.kill()
    await asyncio.wait((third, waits))
    assert (third.exception() is not None, waits.exception() is not None) == (True, True)
    assert (bench.load.encoder_waiting, bench.load.llm_waiting) == (0, 0)
    await other.aclose()


@pytest.mark.parametrize("answer", ["done", "dropped"])
async def test_cancelled_encoding_ends_when_its_slots_are_free(bench: Bench, answer: str) -> None:
    task, job_id = await _encoding(bench)
    task.cancel()
    assert await bench.worker.sent.get() == CancelEncode(job_id)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done(), "the process may still write into the slot"
    bench.worker.say(EncodeDone(job_id, ENCODED) if answer == "done" else EncodeRejected(job_id, None))
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_encode_deadline(bench: Bench) -> None:
    task, job_id = await _encoding(bench, seconds=0.01)
    assert await bench.worker.sent.get() == CancelEncode(job_id)
    assert not task.done()
    bench.worker.say(EncodeRejected(job_id, None))
    with pytest.raises(DeadlineExceeded):
        await task


async def test_a_start_that_fails_raises() -> None:
    bench = Bench()
    bench.runtime.starts_that_fail = 1
    with pytest.raises(StartupError, match="no memory"):
        await bench.engine.start()
    assert not bench.engine.ready
