"""Roles that change while requests run, against workers that the test plays."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from tests.unit.engines.played import BUNDLE, ENCODED, INFO, PREPARED, FakeRuntime, FakeWorker

from foveate.core.clock import now
from foveate.core.errors import EngineDied, EngineUnavailable, EngineUnknown, StartupError
from foveate.core.memory import Slot
from foveate.core.request import Sampling
from foveate.encoders.messages import EncodeDone
from foveate.engines.embedded import roles
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.kv_room import KvRoom
from foveate.engines.embedded.messages import EmbeddedConfig, Prefill, Prefilled, SlotFree, TokenDecode
from foveate.engines.embedded.places import Place
from foveate.engines.embedded.split import SplitFleet
from foveate.engines.messages import Generate
from foveate.engines.port import EngineWork, FinishEvent, Role, TokenEvent
from foveate.observe.records import Topology

ROOM = 4096


class PlayedSupply:
    """Two whole processes, or as many prefill and token-decode workers as are asked for; ``threads`` of each role."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.runtime.info = msgspec.structs.replace(INFO, kv_bytes_per_token=8)
        self.threads: dict[Role, int] = {"pd": 1, "p": 1, "d": 1}
        self.refusal: StartupError | None = None
        self.made: list[EmbeddedEngine] = []
        self.ended: list[int] = []
        self._numbers = itertools.count()

    def places(self, topology: Topology, prefill: int | None, decode: int | None) -> list[Place]:
        split: list[Role] = [*["p"] * (prefill or 1), *["d"] * (decode or 1)]  # type: ignore[list-item]
        found: list[Role] = split if topology == "e-p-d" else ["pd", "pd"]
        return [Place(role, EmbeddedConfig("directory", "model"), self.threads[role]) for role in found]

    async def check_room(self, places: Sequence[Place]) -> None:
        if self.refusal is not None:
            raise self.refusal

    def make(self, place: Place) -> EmbeddedEngine:
        number = next(self._numbers)
        self.made.append(
            EmbeddedEngine(self.runtime, place.config, threads=place.threads, index=number, start_seconds_max=5)  # type: ignore[arg-type]
        )
        return self.made[-1]

    def gone(self, engine: EmbeddedEngine) -> None:
        self.ended.append(engine.index)


class Bench:
    """A fleet of played processes, and requests to it."""

    def __init__(self) -> None:
        self.supply = PlayedSupply()
        self.room = KvRoom(Slot(0, ROOM))
        self.fleet = SplitFleet(self.supply, self.room, end_seconds_max=5)
        self.open: dict[str, AsyncGenerator[Any, None]] = {}
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.unread: list[tuple[int, Any]] = []

    def worker(self, number: int) -> FakeWorker:
        """The process of this number, as it last started."""
        return next(one for one in reversed(self.supply.runtime.workers) if one.spec.index == number)

    def running(self) -> list[int]:
        return sorted(one.spec.index for one in self.supply.runtime.workers if one.alive)

    def roles(self) -> list[tuple[str, Role]]:
        return [(one.name, one.role) for one in self.fleet.report() if not one.leaving]

    def ask(self, name: str, tokens: int = 10) -> None:
        self.open[name] = self.fleet.generate(EngineWork(name, [1] * tokens, [], Sampling(5), now() + 60))
        self.tasks[name] = asyncio.ensure_future(anext(self.open[name]))

    async def sent(self, kind: type) -> tuple[int, Any]:
        """Return the next message of this kind, and which process it was sent to."""
        while True:
            for worker in self.supply.runtime.workers:
                while not worker.sent.empty():
                    self.unread.append((worker.spec.index, worker.sent.get_nowait()))
            for one in self.unread:
                if isinstance(one[1], kind):
                    self.unread.remove(one)
                    return one
            await asyncio.sleep(0)

    async def answer(self, name: str, number: int) -> None:
        """Answer a request, and have it end."""
        self.worker(number).say(TokenEvent(name, 0, "x", [1]))
        await self.tasks[name]
        self.worker(number).say(FinishEvent(name, 0, "stop", 1, last=True))
        await anext(self.open[name])
        await self.open[name].aclose()

    async def prefilled(self, name: str) -> int:
        """Have a prompt prefilled; return by whom."""
        number, message = await self.sent(Prefill)
        assert message.work.request_id == name
        self.worker(number).say(Prefilled(name, BUNDLE, 10, now(), now(), 0, 0.0))
        return number

    async def left(self) -> None:
        """Wait until nobody is leaving, and whoever has left has ended."""
        while any(one.leaving for one in self.fleet.report()) or len(self.running()) > len(self.fleet.report()):
            await asyncio.sleep(0.005)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(roles, "LINGER_SECONDS", 0.0)
    bench = Bench()
    await bench.fleet.start()
    yield bench
    await bench.fleet.stop(seconds_max=1)
    await asyncio.gather(*bench.tasks.values(), return_exceptions=True)
    assert bench.running() == []
    assert sorted(set(bench.supply.ended)) == [engine.index for engine in bench.supply.made], "each was given back"
    assert bench.room.used_bytes == 0


async def test_processes_are_given_other_roles_and_none_is_replaced(bench: Bench) -> None:
    await bench.fleet.change("e-p-d")
    assert bench.roles() == [("0", "p"), ("1", "d")]
    bench.ask("a")
    first = await bench.prefilled("a")
    second, _ = await bench.sent(TokenDecode)
    assert (first, second) == (0, 1)
    bench.worker(second).say(SlotFree("a"))
    await bench.answer("a", second)
    await bench.fleet.change("agg")
    assert bench.roles() == [("0", "pd"), ("1", "pd")]
    for name in ("b", "c"):
        bench.ask(name)
    whole = {(await bench.sent(Generate))[0] for _ in range(2)}
    assert whole == {0, 1}
    assert bench.running() == [0, 1]
    assert len(bench.supply.made) == 2


async def test_numbers_change_and_what_is_under_way_ends_where_it_is(bench: Bench) -> None:
    await bench.fleet.change("e-p-d", prefill=1, decode=2)
    assert bench.roles() == [("0", "p"), ("1", "d"), ("2", "d")]
    await bench.fleet.change("e-p-d", prefill=2)
    assert bench.roles() == [("0", "p"), ("1", "d"), ("2", "d"), ("3", "p")], "those that are not spoken of stay"
    for name in ("a", "b"):
        bench.ask(name)
        await bench.prefilled(name)
    went = {message.work.request_id: number for number, message in [await bench.sent(TokenDecode) for _ in range(2)]}
    assert sorted(went.values()) == [1, 2]
    await bench.fleet.change("e-p-d", prefill=1, decode=1)
    assert [one.name for one in bench.fleet.report() if one.leaving] == ["2", "3"]
    await asyncio.sleep(0.02)
    assert 2 in bench.running(), "it has a request"
    bench.ask("c")
    await bench.prefilled("c")
    assert (await bench.sent(TokenDecode))[0] == 1, "nothing new goes there"
    for name, number in went.items():
        bench.worker(number).say(SlotFree(name))
        await bench.answer(name, number)
    await bench.left()
    assert bench.running() == [0, 1]
    assert sorted(bench.supply.ended) == [2, 3]


async def test_a_request_whose_roles_change_on_its_way_is_answered(bench: Bench) -> None:
    """Asked apart, prefilled apart, and answered by whoever answers whole requests by then."""
    await bench.fleet.change("e-p-d")
    bench.ask("a")
    first, _ = await bench.sent(Prefill)
    await bench.fleet.change("agg")
    bench.worker(first).say(Prefilled("a", BUNDLE, 10, now(), now(), 0, 0.0))
    number, _ = await bench.sent(TokenDecode)
    bench.worker(number).say(SlotFree("a"))
    await bench.answer("a", number)


@pytest.mark.parametrize("before", [0, 1])
async def test_a_request_that_two_processes_ended_with_is_given_to_no_third(bench: Bench, before: int) -> None:
    """Two here, or one here and one before it came here."""
    await bench.fleet.change("e-p-d", prefill=3, decode=1)
    work = EngineWork("a", [1] * 10, [], Sampling(5), now() + 60, deaths=before)
    asked = asyncio.ensure_future(anext(bench.fleet.generate(work)))
    for _ in range(2 - before):
        number, _ = await bench.sent(Prefill)
        bench.worker(number).kill()
    with pytest.raises(EngineDied) as caught:
        await asked
    assert caught.value.deaths == 2


async def test_where_nobody_is_left_to_draw_the_tokens_the_death_before_is_still_told(bench: Bench) -> None:
    """Else the next try would give the request to a third process that it may end."""
    await bench.fleet.change("e-p-d", prefill=2, decode=1)
    work = EngineWork("a", [1] * 10, [], Sampling(5), now() + 60)
    asked = asyncio.ensure_future(anext(bench.fleet.generate(work)))
    first, _ = await bench.sent(Prefill)
    bench.worker(first).kill()
    second, _ = await bench.sent(Prefill)
    (decodes,) = {0, 1, 2} - {first, second}
    bench.worker(decodes).kill()
    bench.worker(second).say(Prefilled("a", BUNDLE, 10, now(), now(), 0, 0.0))
    with pytest.raises(EngineDied) as caught:
        await asked
    assert caught.value.deaths == 1


async def test_a_prompt_that_never_has_room_is_answered_whole(bench: Bench) -> None:
    await bench.fleet.change("e-p-d")
    bench.ask("long", tokens=ROOM // 8 + 1)
    number, _ = await bench.sent(Generate)
    await bench.answer("long", number)


async def test_another_place_is_another_process_which_is_there_first(bench: Bench) -> None:
    bench.supply.threads = {"pd": 4, "p": 2, "d": 1}
    await bench.fleet.change("e-p-d")
    assert bench.roles() == [("0", "d"), ("2", "p")]
    bench.ask("a")
    assert await bench.prefilled("a") == 2
    await bench.left()
    assert bench.running() == [0, 2]


@pytest.mark.parametrize("how", ["does not start", "has no memory", "is another model's"])
async def test_what_cannot_start_leaves_all_as_it_was(how: str, bench: Bench) -> None:
    if how == "does not start":
        bench.supply.runtime.starts_that_fail = 1
    elif how == "has no memory":
        bench.supply.refusal = StartupError("Not enough memory.")
    else:
        bench.supply.runtime.info = msgspec.structs.replace(INFO, encoder_version="another")
    with pytest.raises(StartupError):
        await bench.fleet.change("e-p-d", prefill=2, decode=2)
    assert bench.roles() == [("0", "pd"), ("1", "pd")]
    assert bench.fleet.topology == "agg"
    assert bench.running() == [0, 1]
    bench.supply.refusal, bench.supply.runtime.info = None, bench.fleet.info
    await bench.fleet.change("e-p-d", prefill=2, decode=2)
    assert [role for _, role in bench.roles()] == ["p", "p", "d", "d"]


async def test_one_that_was_leaving_is_taken_back(bench: Bench) -> None:
    await bench.fleet.change("e-p-d", decode=2)
    bench.ask("a")
    await bench.prefilled("a")
    bench.ask("b")
    await bench.prefilled("b")
    went = {message.work.request_id: number for number, message in [await bench.sent(TokenDecode) for _ in range(2)]}
    await bench.fleet.change("e-p-d", decode=1)
    await bench.fleet.change("e-p-d", decode=2)
    assert len(bench.supply.made) == 3
    for name, number in went.items():
        bench.worker(number).say(SlotFree(name))
        await bench.answer(name, number)
    await asyncio.sleep(0.02)
    assert bench.running() == [0, 1, 2]
    assert [one.leaving for one in bench.fleet.report()] == [False] * 3


async def test_stopping_ends_those_that_come_and_those_that_go(bench: Bench) -> None:
    await bench.fleet.change("e-p-d", decode=2)
    for name in ("a", "b"):
        bench.ask(name)
        await bench.prefilled(name)
        await bench.sent(TokenDecode)
    await bench.fleet.change("e-p-d", decode=1)
    change = asyncio.ensure_future(bench.fleet.change("e-p-d", prefill=3))
    await asyncio.sleep(0)
    await bench.fleet.stop(seconds_max=1)
    with pytest.raises(StartupError):
        await change
    assert bench.running() == []


async def test_restarts_are_counted_on_by_the_successor_in_a_place(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveate.engines.process_client._RESTART_SECONDS_MIN", 0.01)
    await bench.fleet.change("e-p-d", decode=2)
    bench.worker(2).kill()
    while not bench.supply.made[2].ready:
        await asyncio.sleep(0.005)
    await bench.fleet.change("agg")
    await bench.left()
    await bench.fleet.change("e-p-d", decode=2)
    assert [(one.name, one.restarts) for one in bench.fleet.report()] == [("0", 0), ("1", 0), ("2", 1)]
    assert bench.fleet.restarts == 1


async def test_one_that_is_drained_is_given_nothing_new_in_any_role(bench: Bench) -> None:
    assert bench.fleet.drain("0", draining=True).draining
    for name in ("a", "b"):
        bench.ask(name)
        assert (await bench.sent(Generate))[0] == 1
    picture = asyncio.ensure_future(bench.fleet.encode(PREPARED, Slot(0, 64), deadline=now() + 60))
    await asyncio.sleep(0)
    job = bench.worker(1).sent.get_nowait()
    bench.worker(1).say(EncodeDone(job.job_id, ENCODED))
    assert await picture == ENCODED
    await bench.fleet.change("e-p-d")
    assert [(one.role, one.draining) for one in bench.fleet.report()] == [("d", True), ("p", False)]
    bench.ask("c")
    assert (await bench.sent(Generate))[0] == 1, "the only one that is open answers whole requests"
    assert not bench.fleet.drain("0", draining=False).draining
    bench.fleet.drain("1", draining=True)
    bench.fleet.drain("0", draining=True)
    assert not bench.fleet.ready
    with pytest.raises(EngineUnavailable):
        await anext(bench.fleet.generate(EngineWork("d", [1], [], Sampling(5), now() + 60)))
    with pytest.raises(EngineUnknown):
        bench.fleet.drain("2", draining=True)
