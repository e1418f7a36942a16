"""Several engine processes as one, against workers that the test plays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.unit.engines.played import BUNDLE, ENCODED, INFO, PREPARED, FakeRuntime, FakeWorker

from foveate.core.clock import now
from foveate.core.errors import EngineDied, EngineUnavailable, QueueFull, StartupError
from foveate.core.memory import Slot
from foveate.core.request import Sampling
from foveate.encoders.messages import Encode, EncodeDone
from foveate.encoders.port import Purpose
from foveate.engines import fleet, member, process_client
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.engines.fleet import Fleet
from foveate.engines.messages import Cancel, Cancelled, Generate
from foveate.engines.port import EngineWork, FailEvent, FinishEvent, PictureInput, TokenEvent

TILE = INFO.picture_token_id
NEW = msgspec.structs.replace(INFO, encoder_version="another")


class Bench:
    """A fleet of played processes, and requests to it that are told apart by their ids."""

    def __init__(self, count: int = 2) -> None:
        self.runtimes = [FakeRuntime() for _ in range(count)]
        self.engines = [
            EmbeddedEngine(runtime, EmbeddedConfig("directory", "model"), threads=1, start_seconds_max=5, index=index)
            for index, runtime in enumerate(self.runtimes)
        ]
        self.fleet = Fleet(self.engines)
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.open: dict[str, AsyncGenerator[Any, None]] = {}

    def worker(self, index: int) -> FakeWorker:
        return self.runtimes[index].workers[-1]

    async def ask(self, name: str, tokens: int = 100, picture: str = "", *, taken_by: int | None = None) -> int:
        """Send a request; return which process it went to."""
        pictures = [PictureInput(BUNDLE, tokens - 10, {}, picture)] if picture else []
        ids = [TILE] * (tokens - 10) + [1] * 10 if picture else [hash(name) % 1000 + 10] * tokens
        events = self.fleet.generate(EngineWork(name, ids, pictures, Sampling(5), now() + 60))
        self.open[name] = events
        self.tasks[name] = asyncio.ensure_future(anext(events))
        return await self.went(name)

    async def went(self, name: str) -> int:
        while True:
            for index in range(len(self.runtimes)):
                sent = self.worker(index).sent
                if not sent.empty():
                    message = sent.get_nowait()
                    if isinstance(message, Generate) and message.work.request_id == name:
                        return index
            await asyncio.sleep(0)

    async def first_token(self, name: str, index: int) -> None:
        self.worker(index).say(TokenEvent(name, 0, "x", [1]))
        await self.tasks[name]

    async def end(self, name: str, index: int) -> None:
        self.worker(index).say(FinishEvent(name, 0, "stop", 1, last=True))
        await self.tasks[name]
        await self.open[name].aclose()

    def outstanding(self) -> list[float]:
        return [one.outstanding_tokens for one in self.fleet.report()]

    async def come_back(self, index: int) -> None:
        while not self.engines[index].ready:
            await asyncio.sleep(0.005)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(process_client, "_RESTART_SECONDS_MIN", 0.01)
    bench = Bench()
    await bench.fleet.start()
    yield bench
    await bench.fleet.stop(seconds_max=1)
    await asyncio.gather(*bench.tasks.values(), return_exceptions=True)


async def test_requests_go_where_least_is_to_be_done(bench: Bench) -> None:
    first = await bench.ask("long", 1000)
    assert [await bench.ask(f"short {number}", 100) for number in range(3)] == [1 - first] * 3
    assert bench.outstanding()[first] == 1000
    assert bench.outstanding()[1 - first] == 300
    await bench.first_token("long", first)
    assert bench.outstanding()[first] == fleet.STREAM_TOKENS
    assert await bench.ask("next", 100) == first


async def test_what_has_ended_counts_no_more(bench: Bench) -> None:
    went = {name: await bench.ask(name) for name in ("a", "b")}
    await bench.end("a", went["a"])
    bench.tasks["b"].cancel()
    assert await bench.worker(went["b"]).sent.get() == Cancel("b")
    assert bench.fleet.report()[went["b"]].in_flight == 1, "until the process has let go of it"
    bench.worker(went["b"]).say(Cancelled("b"))
    await asyncio.wait({bench.tasks["b"]})
    assert bench.outstanding() == [0, 0]
    assert [one.in_flight for one in bench.fleet.report()] == [0, 0]


async def test_the_same_picture_goes_to_the_same_process_until_that_has_too_much_to_do(bench: Bench) -> None:
    cat, dog = await bench.ask("cat 0", picture="cat"), await bench.ask("dog 0", picture="dog")
    assert cat != dog
    for name, index in (("cat 0", cat), ("dog 0", dog)):
        await bench.end(name, index)
    for number in range(1, 4):
        for name, index in (("dog", dog), ("cat", cat)):
            assert await bench.ask(f"{name} {number}", picture=name) == index
            await bench.end(f"{name} {number}", index)
    went = [await bench.ask(f"many {number}", picture="cat") for number in range(10)]
    assert went[0] == cat
    assert 3 <= went.count(1 - cat) <= 5, "what is popular spreads"


async def test_one_that_is_full_is_passed_over(bench: Bench) -> None:
    first = await bench.ask("a")
    bench.worker(first).say(FailEvent("a", QueueFull(detail="full").record()))
    assert await bench.went("a") == 1 - first
    bench.worker(1 - first).say(FailEvent("a", QueueFull(detail="full too").record()))
    with pytest.raises(QueueFull, match="full too"):
        await bench.tasks["a"]


async def test_death_ends_what_the_dead_held_and_the_other_goes_on(bench: Bench) -> None:
    went = {name: await bench.ask(name) for name in ("a", "b")}
    bench.worker(went["a"]).kill()
    with pytest.raises(EngineDied):
        await bench.tasks["a"]
    assert bench.fleet.ready
    assert [one.usable for one in bench.fleet.report()] == [index != went["a"] for index in range(2)]
    assert await bench.ask("again") == went["b"]
    await bench.end("b", went["b"])
    await bench.come_back(went["a"])
    assert bench.fleet.restarts == 1
    assert bench.fleet.report()[went["a"]].restarts == 1


async def test_one_that_came_back_is_not_run_over(bench: Bench) -> None:
    bench.worker(0).kill()
    await bench.come_back(0)
    went = [await bench.ask(f"r{number}") for number in range(20)]
    assert 1 <= went.count(0) <= 4, "an idle process gets a tenth of its share at first, not all at once"


async def test_what_a_dead_process_had_cached_is_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "RECOVER_SECONDS", 0)
    cat = await bench.ask("cat 0", picture="cat")
    await bench.end("cat 0", cat)
    bench.worker(cat).kill()
    await bench.come_back(cat)
    went = [await bench.ask(f"cat {number}", picture="cat") for number in (1, 2)]
    assert sorted(went) == [0, 1], "no reason to wait for one of them"


async def test_all_dead(bench: Bench) -> None:
    for runtime in bench.runtimes:
        runtime.starts_that_fail = 10**6
    for index in range(2):
        bench.worker(index).kill()
    assert not bench.fleet.ready
    with pytest.raises(EngineUnavailable):
        await anext(bench.fleet.generate(EngineWork("r", [1], [], Sampling(5), now() + 60)))
    with pytest.raises(EngineUnavailable):
        await bench.fleet.encode(PREPARED, Slot(0, 64), deadline=now() + 5)
    assert bench.fleet.info == INFO, "what it was is still known"


async def test_a_process_of_another_model_is_not_used(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.runtimes[0].info = NEW
    bench.worker(0).kill()
    await bench.come_back(0)
    with caplog.at_level(logging.ERROR, "foveate.engine"):
        assert [await bench.ask(f"r{number}") for number in range(4)] == [1, 1, 1, 1]
    assert [one.usable for one in bench.fleet.report()] == [False, True]
    assert bench.fleet.info == INFO
    assert sum("not used" in line for line in caplog.messages) == 1
    # When the last of the old ones is gone there is nothing left to agree with.
    bench.runtimes[1].info = NEW
    bench.worker(1).kill()
    assert bench.fleet.ready
    assert bench.fleet.info == NEW
    await bench.come_back(1)
    assert [one.usable for one in bench.fleet.report()] == [True, True]


async def test_held_to_its_encoder_it_uses_no_other(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fleet.hold()
    for index, info in enumerate((NEW, NEW)):
        bench.runtimes[index].info = info
        bench.worker(index).kill()
        await bench.come_back(index)
    with caplog.at_level(logging.ERROR, "foveate.engine"):
        assert not bench.fleet.ready
        with pytest.raises(EngineUnavailable):
            await bench.fleet.encode(PREPARED, Slot(0, 64), deadline=now() + 5)
    assert sum("start the server again" in line for line in caplog.messages) == 2
    assert bench.fleet.info == INFO
    # Another language model beside the same encoder is another matter.
    for index in range(2):
        bench.runtimes[index].info = msgspec.structs.replace(INFO, context_tokens_max=77)
        bench.worker(index).kill()
        await bench.come_back(index)
    assert [one.usable for one in bench.fleet.report()] == [True, True]
    assert bench.fleet.info.context_tokens_max == 77


async def test_pictures_spread_over_the_encoders(bench: Bench) -> None:
    slot = Slot(0, 64)
    jobs = [asyncio.ensure_future(bench.fleet.encode(PREPARED, slot, deadline=now() + 60)) for _ in range(4)]
    await asyncio.sleep(0)
    assert [bench.worker(index).sent.qsize() for index in range(2)] == [2, 2]
    bench.worker(0).kill()
    more = asyncio.ensure_future(bench.fleet.encode(PREPARED, slot, deadline=now() + 60))
    await asyncio.sleep(0)
    for _ in range(3):
        message = bench.worker(1).sent.get_nowait()
        assert isinstance(message, Encode)
        bench.worker(1).say(EncodeDone(message.job_id, ENCODED))
    ended = await asyncio.gather(*jobs, more, return_exceptions=True)
    assert sum(isinstance(one, EngineUnavailable) for one in ended) == 2
    assert sum(one == ENCODED for one in ended) == 3


async def test_a_content_is_encoded_where_it_was_before(bench: Bench) -> None:
    async def went(content: str) -> int:
        task = asyncio.ensure_future(
            bench.fleet.encode(PREPARED, Slot(0, 64), deadline=now() + 60, purpose=Purpose("", "", content))
        )
        await asyncio.sleep(0)
        (index,) = [number for number in range(2) if not bench.worker(number).sent.empty()]
        bench.worker(index).say(EncodeDone(bench.worker(index).sent.get_nowait().job_id, ENCODED))
        await task
        return index

    first = {content: await went(content) for content in "abcdefgh"}
    assert set(first.values()) == {0, 1}
    assert {content: await went(content) for content in "hgfedcba"} == first


async def test_one_that_cannot_start_fails_the_whole() -> None:
    bench = Bench()
    bench.runtimes[1].starts_that_fail = 1
    with pytest.raises(StartupError, match="no memory"):
        await bench.fleet.start()
    await bench.fleet.stop(seconds_max=1)
    assert not any(runtime.workers[-1].alive for runtime in bench.runtimes)
