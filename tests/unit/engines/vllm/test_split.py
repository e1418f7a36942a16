"""Prompts that one vLLM prefills and another goes on with, against workers that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.engines.played import FakeRuntime, FakeWorker

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EngineDied, InvalidParameter, QueueFull
from foveate.core.request import Sampling
from foveate.engines.messages import Cancel, Cancelled, Generate
from foveate.engines.port import EngineWork, FailEvent, FinishEvent, Role, TokenEvent
from foveate.engines.vllm.client import VllmEngine
from foveate.engines.vllm.config import VllmConfig
from foveate.engines.vllm.messages import LetGo, Prefill, Prefilled, TokenDecode
from foveate.engines.vllm.split import VllmSplit

ROLES: Sequence[Role] = ("p", "p", "d", "d")
P, D = (0, 1), (2, 3)


class Bench:
    """A fleet of played processes, and one request to it at a time."""

    def __init__(self) -> None:
        self.runtimes = [FakeRuntime() for _ in ROLES]
        self.engines = [
            VllmEngine(
                runtime,
                VllmConfig("directory", "model", "llava", role=role),
                threads=1,
                start_seconds_max=5,
                index=index,
            )
            for index, (runtime, role) in enumerate(zip(self.runtimes, ROLES, strict=True))
        ]
        self.split = VllmSplit(self.engines, ROLES)

    def worker(self, index: int) -> FakeWorker:
        return self.runtimes[index].workers[-1]

    def ask(self, name: str = "r", seconds: float = 60.0, **sampling: Any) -> asyncio.Task[list[Any]]:
        work = EngineWork(name, [1] * 20, [], Sampling(5, **sampling), now() + seconds)

        async def answer() -> list[Any]:
            return [event async for event in self.split.generate(work)]

        return asyncio.ensure_future(answer())

    async def sent(self, kind: type[Any]) -> tuple[int, Any]:
        """Return the next message of a kind that any process is sent, and to which."""
        async with asyncio.timeout(5):
            while True:
                for index in range(len(ROLES)):
                    queue = self.worker(index).sent
                    while not queue.empty():
                        message = queue.get_nowait()
                        if isinstance(message, kind):
                            return index, message
                await asyncio.sleep(0)

    def nothing_sent(self, *kinds: type[Any]) -> bool:
        left = [self.worker(index).sent for index in range(len(ROLES))]
        messages = [queue.get_nowait() for queue in left for _ in range(queue.qsize())]
        return not any(isinstance(message, kinds) for message in messages)

    async def prefilled(self, name: str = "r") -> tuple[int, int, Any]:
        """Have a prompt prefilled; return by whom, who is asked to go on, and how."""
        by, message = await self.sent(Prefill)
        assert by in P
        self.worker(by).say(held(name))
        at, decode = await self.sent(TokenDecode)
        assert at in D
        assert decode.submitted_at == message.submitted_at
        assert decode.prefilled == held(name)
        return by, at, decode

    def answer(self, index: int, name: str = "r") -> None:
        self.worker(index).say(TokenEvent(name, 0, "x", [1]))
        self.worker(index).say(FinishEvent(name, 0, "stop", 1, last=True))


def held(name: str = "r") -> Prefilled:
    return Prefilled(name, 1.0, 2.0, 0, {"remote_request_id": f"{name}-of-vllm"})


def refused(name: str, error: Exception) -> FailEvent:
    return FailEvent(name, error.record())  # type: ignore[attr-defined]


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.split.start()
    yield bench
    await bench.split.stop(seconds_max=1)


async def test_one_prefills_and_another_draws(bench: Bench) -> None:
    answer = bench.ask()
    _, at, _ = await bench.prefilled()
    bench.answer(at)
    assert len(await answer) == 2
    assert bench.nothing_sent(LetGo, Prefill, TokenDecode), "what was read is let go by vLLM itself"
    assert all(one.in_flight == 0 for one in bench.split.report())


async def test_the_prompts_log_probabilities_are_told_by_whoever_computes_all_of_it(bench: Bench) -> None:
    answer = bench.ask(prompt_logprobs=1)
    at, _ = await bench.sent(Generate)
    assert at in D
    bench.answer(at)
    assert len(await answer) == 2


async def test_a_prefill_that_dies_is_done_again(bench: Bench) -> None:
    answer = bench.ask()
    first, _ = await bench.sent(Prefill)
    bench.worker(first).kill()
    second, at, _ = await bench.prefilled()
    assert second != first
    bench.answer(at)
    assert len(await answer) == 2


async def test_what_another_may_have_read_is_not_read_again(bench: Bench) -> None:
    """The holder gives it up once it was read: a second reader would find another prompt's."""
    answer = bench.ask()
    holder, first, _ = await bench.prefilled()
    bench.worker(first).kill()
    told, message = await bench.sent(LetGo)
    assert (told, message.request_id) == (holder, "r")
    _, second, _ = await bench.prefilled()
    assert second != first
    bench.answer(second)
    assert len(await answer) == 2


async def test_a_request_that_two_processes_ended_with_is_given_to_no_third(bench: Bench) -> None:
    """Whatever each of them did with it."""
    answer = bench.ask()
    first, _ = await bench.sent(Prefill)
    bench.worker(first).kill()
    _, at, _ = await bench.prefilled()
    bench.worker(at).kill()
    with pytest.raises(EngineDied) as caught:
        await answer
    assert caught.value.deaths == 2
    assert bench.nothing_sent(Prefill, TokenDecode)


async def test_where_nobody_is_left_to_draw_the_tokens_the_death_before_is_still_told(bench: Bench) -> None:
    """Else the next try would give the request to a third process that it may end."""
    answer = bench.ask()
    first, _ = await bench.sent(Prefill)
    bench.worker(first).kill()
    second, _ = await bench.sent(Prefill)
    for at in D:
        bench.worker(at).kill()
    bench.worker(second).say(held())
    with pytest.raises(EngineDied) as caught:
        await answer
    assert caught.value.deaths == 1


async def test_one_without_a_place_is_passed_over_and_what_it_did_not_look_at_is_read_by_another(bench: Bench) -> None:
    answer = bench.ask()
    holder, first, _ = await bench.prefilled()
    bench.worker(first).say(refused("r", QueueFull()))
    second, decode = await bench.sent(TokenDecode)
    assert second in D
    assert second != first
    assert decode.prefilled == held()
    bench.worker(second).say(refused("r", QueueFull()))
    with pytest.raises(QueueFull):
        await answer
    told, message = await bench.sent(LetGo)
    assert (told, message.request_id) == (holder, "r")


async def test_a_refusal_is_not_tried_again(bench: Bench) -> None:
    answer = bench.ask()
    _, at, _ = await bench.prefilled()
    bench.worker(at).say(refused("r", InvalidParameter("no")))
    with pytest.raises(InvalidParameter):
        await answer
    assert bench.nothing_sent(Prefill, TokenDecode, LetGo)


async def test_cancelled_in_prefill_nothing_is_left_held(bench: Bench) -> None:
    """Not even what was prefilled in the instant in which it was cancelled."""
    answer = bench.ask()
    by, _ = await bench.sent(Prefill)
    answer.cancel()
    where, _ = await bench.sent(Cancel)
    assert where == by
    assert not answer.done(), "the pictures may still be read"
    bench.worker(by).say(Cancelled("r"))
    with pytest.raises(asyncio.CancelledError):
        await answer
    assert bench.nothing_sent(LetGo)

    late = bench.ask("late")
    by, _ = await bench.sent(Prefill)
    late.cancel()
    await bench.sent(Cancel)
    bench.worker(by).say(held("late"))
    with pytest.raises(asyncio.CancelledError):
        await late
    told, message = await bench.sent(LetGo)
    assert (told, message.request_id) == (by, "late")


@pytest.mark.parametrize("how", ["it had no place", "it died"])
async def test_cancelled_while_nobody_reads_it_it_is_given_up(bench: Bench, how: str) -> None:
    """Whoever was asked to read it says in the instant of the cancellation that it has not."""
    answer = bench.ask()
    holder, at, _ = await bench.prefilled()
    answer.cancel()
    await bench.sent(Cancel)
    if how == "it died":
        bench.worker(at).kill()
    else:
        bench.worker(at).say(refused("r", QueueFull()))
    with pytest.raises(asyncio.CancelledError):
        await answer
    told, message = await bench.sent(LetGo)
    assert (told, message.request_id) == (holder, "r")


async def test_a_deadline_that_passes_in_prefill(bench: Bench) -> None:
    answer = bench.ask(seconds=0.05)
    by, _ = await bench.sent(Prefill)
    await bench.sent(Cancel)
    bench.worker(by).say(Cancelled("r"))
    with pytest.raises(DeadlineExceeded):
        await answer


async def test_with_nobody_left_to_read_it_is_given_up(bench: Bench) -> None:
    answer = bench.ask()
    holder, first, _ = await bench.prefilled()
    other = next(index for index in D if index != first)
    for index in (other, first):
        bench.worker(index).kill()
    with pytest.raises(EngineDied):
        await answer
    told, message = await bench.sent(LetGo)
    assert (told, message.request_id) == (holder, "r")


async def test_nobody_is_told_of_what_died_with_its_holder(bench: Bench) -> None:
    answer = bench.ask()
    holder, first, _ = await bench.prefilled()
    bench.worker(holder).kill()
    bench.worker(first).kill()
    second = bench.worker(next(index for index in P if index != holder))
    while second.sent.empty():
        await asyncio.sleep(0)
    assert isinstance(second.sent.get_nowait(), Prefill)
    assert bench.nothing_sent(LetGo)
    answer.cancel()
    await bench.sent(Cancel)
    second.say(Cancelled("r"))
    with pytest.raises(asyncio.CancelledError):
        await answer


@pytest.mark.parametrize("gone", [P, D])
async def test_without_a_role_the_other_answers_whole_requests(bench: Bench, gone: tuple[int, ...]) -> None:
    for index in gone:
        bench.worker(index).kill()
    answer = bench.ask()
    at, _ = await bench.sent(Generate)
    assert at not in gone
    bench.answer(at)
    assert len(await answer) == 2
