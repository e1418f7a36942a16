"""What every runtime promises (:mod:`foveate.runtime.port`), on real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
from tests.ray_cluster import connected
from tests.workers import Answer, Ask, Sum, Write, Written

from foveate.core.clock import now
from foveate.core.errors import StartupError
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.port import Progress, Ready, Runtime, Worker, WorkerSpec

pytestmark = pytest.mark.xdist_group("ray")
RUNTIMES = ("local", "ray")
MIB = 1024 * 1024


class Bench:
    """A runtime, its arena, and one place that hears everything its workers say."""

    def __init__(self, runtime: Runtime) -> None:
        self.arena = runtime.arena
        self.runtime = runtime
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.exits: asyncio.Queue[int] = asyncio.Queue()
        self.workers: list[Worker] = []

    def worker(self, entry: str = "echo", **changes: Any) -> Worker:
        given = {"role": "media", "index": 0, "config": None, **changes}
        worker = self.runtime.worker(
            WorkerSpec(entry=f"tests.workers:{entry}", receives=Ask | Write | Sum, sends=Answer | Written, **given)
        )
        self.workers.append(worker)
        return worker

    async def start(self, worker: Worker, seconds_max: float = 30) -> Ready:
        return await worker.start(
            on_message=self.messages.put_nowait,
            on_exit=lambda: self.exits.put_nowait(worker.spec.index),
            seconds_max=seconds_max,
        )

    async def started(self, **changes: Any) -> Worker:
        worker = self.worker(**changes)
        await self.start(worker)
        assert await self.messages.get() == Progress("loading")
        return worker

    async def ask(self, worker: Worker, what: str, value: Any = None) -> Any:
        worker.send(Ask(what, value))
        answer = await self.messages.get()
        assert isinstance(answer, Answer)
        return answer.value


def ours() -> set[int]:
    """Worker processes of ours below this one, without those that start or hold others."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            title = " ".join(process.cmdline())
            if title.startswith("foveate: ") and "forkserver" not in title and "(host)" not in title:
                found.add(process.pid)
    return found


@pytest.fixture(params=RUNTIMES)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    before = ours()
    local = request.param == "local"
    shared: list[Runtime] = [LocalRuntime(Arena(4 * MIB))] if local else request.getfixturevalue("ray_runtimes")
    if not shared:
        shared.append(await connected(Arena(64 * MIB)))  # of all tests together
    bench = Bench(shared[0])
    yield bench
    if local:
        await bench.runtime.close()
    for worker in bench.workers:
        worker.kill()
        await worker.wait()
    assert not ours() - before, "processes were left behind"


async def test_starts_with_its_config_and_progress(bench: Bench) -> None:
    worker = bench.worker(config={"model": "m", "sizes": [1, 2]})
    assert not worker.alive
    ready = await bench.start(worker)
    assert worker.alive
    assert ready.info["config"] == {"model": "m", "sizes": [1, 2]}
    assert bench.messages.get_nowait() == Progress("loading")


async def test_messages_keep_their_order(bench: Bench) -> None:
    worker = await bench.started()
    for number in range(500):
        worker.send(Ask("say", number))
    assert [(await bench.messages.get()).value for _ in range(500)] == list(range(500))


async def test_large_messages_pass(bench: Bench) -> None:
    worker = await bench.started()
    text = "x" * (5 * MIB)
    assert await bench.ask(worker, "say", text) == text


async def test_a_worker_writes_into_the_slot_it_was_given(bench: Bench) -> None:
    worker = await bench.started()
    before, slot, after = (bench.arena.allocate(1000) for _ in range(3))
    bench.arena.view(before)[:] = bench.arena.view(after)[:] = b"." * 1000
    worker.send(Write(slot, 0x55))
    assert await bench.messages.get() == Written(slot)
    assert bytes(bench.arena.view(slot)) == b"\x55" * 1000
    assert bytes(bench.arena.view(before)) == bytes(bench.arena.view(after)) == b"." * 1000


async def test_a_worker_reads_what_was_written(bench: Bench) -> None:
    worker = await bench.started()
    slots = [bench.arena.allocate(MIB) for _ in range(3)]
    for number, slot in enumerate(slots):
        bench.arena.view(slot)[:] = bytes([number + 1]) * MIB
    for slot in slots:
        worker.send(Sum(slot))
    assert [(await bench.messages.get()).value for _ in slots] == [MIB, 2 * MIB, 3 * MIB]


async def test_one_clock(bench: Bench) -> None:
    worker = await bench.started()
    before = now()
    assert before <= await bench.ask(worker, "clock") <= now()


async def test_a_worker_that_refuses_to_start_says_why(bench: Bench) -> None:
    worker = bench.worker("refuses_to_start", config="no such directory")
    with pytest.raises(StartupError, match="no such directory") as caught:
        await bench.start(worker)
    assert caught.value.public == "There is no model here. Name one with --model."
    assert not worker.alive
    assert bench.exits.empty()


@pytest.mark.parametrize("entry", ["crashes_at_start", "does_not_exist"])
async def test_a_worker_that_crashes_at_start_is_a_startup_error(
    bench: Bench, entry: str, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = bench.worker(entry)
    with pytest.raises(StartupError, match="ended while starting"):
        await bench.start(worker)
    assert not worker.alive
    said = ""
    async with asyncio.timeout(20):  # Ray brings the lines of other nodes when it has them
        while "Traceback" not in said:
            said += capfd.readouterr().err
            await asyncio.sleep(0.05)
    assert bench.exits.empty()


async def test_a_worker_that_is_never_ready_is_ended(bench: Bench) -> None:
    worker = bench.worker("never_ready")
    with pytest.raises(StartupError, match="not ready within"):
        await bench.start(worker, seconds_max=1.5)
    assert not worker.alive
    assert bench.exits.empty()


async def test_a_worker_that_is_stopped_while_it_starts_is_not_waited_for(bench: Bench) -> None:
    worker = bench.worker("stopped_at_start")
    with pytest.raises(StartupError, match="stopped while it started"):
        await bench.start(worker, seconds_max=600)
    await worker.wait()
    assert not worker.alive
    assert bench.exits.empty()


async def test_cancelling_a_start_ends_the_process(bench: Bench) -> None:
    worker = bench.worker("never_ready")
    task = asyncio.ensure_future(bench.start(worker))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not worker.alive


async def test_killing_one_leaves_the_other(bench: Bench) -> None:
    victim, other = await bench.started(index=0), await bench.started(index=1)
    victim.kill()
    assert await bench.exits.get() == 0
    assert not victim.alive
    victim.send(Ask("say", "nobody hears this"))
    assert await bench.ask(other, "say", "here") == "here"
    assert other.alive
    assert bench.exits.empty()


@pytest.mark.parametrize("way", ["kill", "raise"])
async def test_a_worker_that_ends_by_itself_is_noticed_once(bench: Bench, way: str) -> None:
    worker = await bench.started()
    worker.send(Ask("say", "last words"))
    worker.send(Ask(way, "on purpose"))
    assert await bench.exits.get() == 0
    assert (await bench.messages.get()).value == "last words"
    assert not worker.alive
    await worker.stop(seconds_max=1)
    worker.kill()
    await asyncio.sleep(0.05)
    assert bench.exits.empty()


async def test_stop_lets_it_finish(bench: Bench) -> None:
    worker = await bench.started()
    worker.send(Ask("sleep", 0.1))
    worker.send(Ask("say", "done"))
    await worker.stop(seconds_max=20)
    said = [bench.messages.get_nowait().value for _ in range(3)]
    assert said == [None, "done", "goodbye"]
    assert bench.exits.get_nowait() == 0


async def test_stop_kills_one_that_does_not_listen(bench: Bench) -> None:
    worker = bench.worker("deaf")
    await bench.start(worker)
    await worker.stop(seconds_max=0.1)
    assert not worker.alive
    assert bench.exits.get_nowait() == 0


async def test_receive_with_a_timeout_and_pending(bench: Bench) -> None:
    worker = await bench.started()
    assert await bench.ask(worker, "receive_in_time", 0.05) == "timeout"
    assert await bench.ask(worker, "pending_after", 0.0) is False
    worker.send(Ask("pending_after", 0.2))
    worker.send(Ask("say", "next"))
    assert (await bench.messages.get()).value is True
    assert (await bench.messages.get()).value == "next"


async def test_a_worker_sends_from_many_threads(bench: Bench) -> None:
    worker = await bench.started()
    worker.send(Ask("send_from_threads", 4))
    got = [(await bench.messages.get()).value for _ in range(201)]
    assert got[-1] == "sent"
    assert sorted(map(len, got[:-1])) == sorted([1000, 2000, 3000, 4000] * 50)


@pytest.mark.parametrize("what", ["allocate", "map"])
async def test_memory_beyond_the_limit_is_refused_to_the_worker_alone(bench: Bench, what: str) -> None:
    bounded, free = await bench.started(memory_bytes_max=64 * MIB), await bench.started(index=1)
    assert await bench.ask(bounded, what, 96 * MIB) == "refused"
    assert (await bench.ask(bounded, what, 32 * MIB)).startswith("got")
    assert (await bench.ask(free, what, 96 * MIB)).startswith("got")


async def test_a_worker_names_itself_and_is_kept_apart(bench: Bench) -> None:
    worker = await bench.started(role="engine", index=3, threads=2)
    assert await bench.ask(worker, "title") == "foveate: engine 3"
    limits = await bench.ask(worker, "limits")
    assert limits["core"] == 0
    assert limits["threads"] == "2"
    assert limits["sigint_ignored"]


async def test_a_worker_runs_on_the_cores_that_it_is_given(bench: Bench) -> None:
    there = sorted(os.sched_getaffinity(0))
    bound, free = await bench.started(cpus=(there[-1],)), await bench.started(index=1)
    assert await bench.ask(bound, "cpus") == [there[-1]]
    assert await bench.ask(free, "cpus") == there


async def test_close_ends_everything(bench: Bench) -> None:
    if not isinstance(bench.runtime, LocalRuntime):
        bench = Bench(await connected(Arena(MIB)))
    await bench.started()
    await bench.start(bench.worker("deaf", index=1))
    bench.worker(index=2)
    starting = asyncio.ensure_future(bench.start(bench.worker("never_ready", index=3)))
    await asyncio.sleep(0.2)
    await bench.runtime.close()
    assert {bench.exits.get_nowait(), bench.exits.get_nowait()} == {0, 1}
    with pytest.raises(StartupError):
        await starting
