"""The media pool on real worker processes that sleep, crash and over-allocate on request (``workers.media``)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, MediaCostly, MediaWorkersUnavailable, QueueFull, StartupError
from foveate.core.media import ImageHeader, ImageOptions
from foveate.media.messages import JobFailed, MediaReply, Prepare, TooSmall, Unpack, UnpackDone
from foveate.media.pool import MediaPool, PoolConfig
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime

MIB = 1024 * 1024


class Bench:
    """A pool whose jobs are commands; ``used`` tells which jobs' slots a worker may still touch."""

    def __init__(self) -> None:
        self.arena = Arena(MIB)
        self.runtime = LocalRuntime(self.arena)
        self.used: set[str] = set()
        self.pools: list[MediaPool] = []

    async def pool(self, workers: int = 1, **changes: Any) -> MediaPool:
        given = {"config": None, "entry": "tests.workers:media", "job_seconds_max": 30.0, **changes}
        pool = MediaPool(self.runtime, PoolConfig(workers=workers, **given))
        self.pools.append(pool)
        await pool.start()
        return pool

    async def run(self, pool: MediaPool, command: str, seconds: float = 30, whom: str = "") -> MediaReply:
        body, out = self.arena.allocate(64), self.arena.allocate(64)
        self.arena.view(body)[:] = command.encode().ljust(64, b"\0")
        self.arena.view(out)[:] = bytes(64)
        name = f"{command} at {body.offset}"
        self.used.add(name)

        def done() -> None:
            self.used.remove(name)  # a second call would raise
            self.arena.release(body)
            self.arena.release(out)

        return await pool.run(Unpack(body, out), whom=whom, on_done=done, deadline=now() + seconds)

    async def pid(self, pool: MediaPool) -> int:
        """Return the pid of a worker that is idle."""
        reply = await self.run(pool, "say")
        assert isinstance(reply, UnpackDone)
        return int(reply.skeleton)


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    before = {child.pid for child in psutil.Process().children()}  # other tests' servers may still run
    bench = Bench()
    yield bench
    for pool in bench.pools:
        await pool.stop(seconds_max=1)
    await bench.runtime.close()
    assert not bench.used, "a job never told its end"
    assert bench.arena.used_bytes == 0
    left = [child for child in psutil.Process().children() if child.pid not in before]
    assert not [child for child in left if "foveate" in " ".join(child.cmdline())]


async def test_jobs_are_answered_each_with_its_own_reply(bench: Bench) -> None:
    pool = await bench.pool(workers=2)
    replies = await asyncio.gather(*(bench.run(pool, "sleep 0.005") for _ in range(40)))
    assert len({reply.job_id for reply in replies}) == 40
    assert len({reply.skeleton for reply in replies if isinstance(reply, UnpackDone)}) == 2
    assert (pool.busy, pool.waiting, pool.alive, pool.restarts, pool.kills) == (0, 0, 2, 0, 0)


async def test_a_worker_holds_one_job_and_the_rest_wait_in_order(bench: Bench) -> None:
    pool = await bench.pool()
    finished: list[int] = []

    async def numbered(number: int) -> None:
        await bench.run(pool, "sleep 1" if number == 0 else "sleep 0.01")
        finished.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(numbered(number))
        await until(lambda: pool.busy == 1)
        assert pool.waiting == 5
    assert finished == list(range(6))


async def test_the_other_kinds_of_reply_pass(bench: Bench) -> None:
    pool = await bench.pool()
    slot = bench.arena.allocate(64)
    job = Prepare(slot, ImageHeader("png", 1, 1), ImageOptions(), slot)
    reply = await pool.run(job, whom="", on_done=lambda: bench.arena.release(slot), deadline=now() + 30)
    assert isinstance(reply, TooSmall)
    assert reply.bytes_needed == 12345


async def test_a_killed_worker_costs_nothing_but_time(bench: Bench) -> None:
    pool = await bench.pool(workers=2)
    victim = await bench.pid(pool)
    jobs = [asyncio.ensure_future(bench.run(pool, "sleep 0.3")) for _ in range(6)]
    await until(lambda: pool.busy == 2)
    os.kill(victim, signal.SIGKILL)
    replies = await asyncio.gather(*jobs)
    assert all(isinstance(reply, UnpackDone) for reply in replies)
    await until(lambda: pool.alive == 2)
    assert pool.restarts == 1
    assert victim not in {await bench.pid(pool) for _ in range(2)}


async def test_an_idle_worker_that_dies_is_replaced(bench: Bench) -> None:
    pool = await bench.pool()
    victim = await bench.pid(pool)
    os.kill(victim, signal.SIGKILL)
    # Not "until it is not ready": the successor may be there before anyone looks.
    await until(lambda: pool.restarts == 1)
    assert await bench.pid(pool) != victim, "the job waited for the successor"
    assert pool.restarts == 1


async def test_a_job_whose_worker_died_is_tried_once_more(bench: Bench) -> None:
    pool = await bench.pool(workers=2)
    assert isinstance(await bench.run(pool, "die_once"), UnpackDone)
    await until(lambda: pool.alive == 2)


async def test_poison_fails_alone_after_two_workers(bench: Bench) -> None:
    pool = await bench.pool(workers=2)
    good = [asyncio.ensure_future(bench.run(pool, "sleep 0.02")) for _ in range(4)]
    with pytest.raises(MediaCostly) as caught:
        await bench.run(pool, "die")
    assert "2 workers died" in caught.value.detail
    assert all(isinstance(reply, UnpackDone) for reply in await asyncio.gather(*good))
    await until(lambda: pool.alive == 2)
    assert pool.restarts == 2
    assert pool.kills == 0


async def test_repeated_poison_does_not_stop_the_pool(bench: Bench) -> None:
    pool = await bench.pool()
    for _ in range(2):
        with pytest.raises(MediaCostly):
            await bench.run(pool, "die")
        assert isinstance(await bench.run(pool, "say"), UnpackDone)


async def test_a_job_beyond_its_time_loses_its_worker_and_no_other(bench: Bench) -> None:
    pool = await bench.pool(workers=2, job_seconds_max=0.4)
    slow = asyncio.ensure_future(bench.run(pool, "sleep 600"))
    other = asyncio.ensure_future(bench.run(pool, "sleep 0.1"))
    assert isinstance(await other, UnpackDone)
    with pytest.raises(MediaCostly, match=r"0\.4 s"):
        await slow
    assert pool.kills == 1
    await until(lambda: pool.alive == 2)


@pytest.mark.parametrize("busy", [False, True])
async def test_a_stopped_worker_is_replaced_and_its_job_done_by_another(bench: Bench, busy: bool) -> None:
    pool = await bench.pool(workers=2)
    worker = await bench.pid(pool)
    job = asyncio.ensure_future(bench.run(pool, "sleep 0.2")) if busy else None
    await until(lambda: pool.busy == int(busy))
    os.kill(worker, signal.SIGSTOP)
    await until(lambda: pool.restarts == 1 and pool.alive == 2)
    if job is not None:
        assert isinstance(await job, UnpackDone)
    assert isinstance(await bench.run(pool, "say"), UnpackDone)
    assert await bench.pid(pool) != worker


async def test_a_worker_that_is_stopped_for_a_moment_is_left_alone(bench: Bench) -> None:
    pool = await bench.pool()
    worker = await bench.pid(pool)
    os.kill(worker, signal.SIGSTOP)
    os.kill(worker, signal.SIGCONT)
    await asyncio.sleep(0.6)
    assert await bench.pid(pool) == worker


async def test_memory_beyond_the_limit_fails_the_job_and_keeps_the_worker(bench: Bench) -> None:
    pool = await bench.pool(memory_bytes_max=64 * MIB)
    worker = await bench.pid(pool)
    reply = await bench.run(pool, f"allocate {128 * MIB}")
    assert isinstance(reply, JobFailed)
    assert isinstance(reply.error.error(), MediaCostly)
    assert isinstance(await bench.run(pool, f"allocate {32 * MIB}"), UnpackDone)
    assert await bench.pid(pool) == worker


async def test_a_cancelled_job_in_the_queue_is_gone_at_once(bench: Bench) -> None:
    pool = await bench.pool()
    running = asyncio.ensure_future(bench.run(pool, "sleep 0.2"))
    queued = asyncio.ensure_future(bench.run(pool, "die"))
    await until(lambda: pool.waiting == 1)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    assert pool.waiting == 0
    assert len(bench.used) == 1, "the queued job gave its slots back"
    await running
    assert pool.restarts == 0


async def test_a_cancelled_jobs_slots_stay_in_use_until_its_worker_is_done(bench: Bench) -> None:
    pool = await bench.pool()
    running = asyncio.ensure_future(bench.run(pool, "sleep 0.2"))
    await until(lambda: pool.busy == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert pool.busy == 1
    assert bench.used
    assert isinstance(await bench.run(pool, "say"), UnpackDone)
    assert not bench.used
    assert pool.restarts == 0


async def test_a_cancelled_job_is_not_tried_again_and_ends_with_its_worker(bench: Bench) -> None:
    pool = await bench.pool()
    worker = await bench.pid(pool)
    running = asyncio.ensure_future(bench.run(pool, "sleep 600"))
    await until(lambda: pool.busy == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    os.kill(worker, signal.SIGKILL)
    await until(lambda: not bench.used)
    assert isinstance(await bench.run(pool, "say"), UnpackDone)


async def test_a_deadline_passes_while_a_worker_holds_the_job(bench: Bench) -> None:
    pool = await bench.pool(job_seconds_max=0.6)
    with pytest.raises(DeadlineExceeded):
        await bench.run(pool, "sleep 600", seconds=0.2)
    assert bench.used, "the worker may still write"
    await until(lambda: not bench.used)
    assert pool.kills == 1


async def test_a_full_queue_refuses_at_once(bench: Bench) -> None:
    pool = await bench.pool(queue_depth_max=2)  # of which one tenant may have both: no quarter of two is a whole place
    jobs = [asyncio.ensure_future(bench.run(pool, "sleep 0.1")) for _ in range(3)]
    await until(lambda: pool.waiting == 2)
    with pytest.raises(QueueFull) as caught:
        await bench.run(pool, "say")
    assert caught.value.retry_after_seconds
    assert len(bench.used) == 3
    await asyncio.gather(*jobs)
    assert isinstance(await bench.run(pool, "say"), UnpackDone)


async def test_one_tenant_cannot_fill_the_queue_for_all(bench: Bench) -> None:
    pool = await bench.pool(queue_depth_max=4)
    jobs = [asyncio.ensure_future(bench.run(pool, "sleep 0.3", whom="many"))]
    await until(lambda: pool.busy == 1)
    jobs += [asyncio.ensure_future(bench.run(pool, "say", whom="many")) for _ in range(3)]
    await until(lambda: pool.waiting == 3)
    with pytest.raises(QueueFull) as caught:
        await bench.run(pool, "say", whom="many")
    assert (caught.value.limit_name, caught.value.limit, caught.value.actual) == ("media.queue_depth_max", 3, 4)
    jobs.append(asyncio.ensure_future(bench.run(pool, "say", whom="other")))
    await until(lambda: pool.waiting == 4)
    with pytest.raises(QueueFull) as caught:
        await bench.run(pool, "say", whom="third")
    assert (caught.value.limit, caught.value.actual) == (4, 5)
    await asyncio.gather(*jobs)
    assert isinstance(await bench.run(pool, "say", whom="many"), UnpackDone)


async def test_without_any_worker_a_job_waits_until_its_deadline(bench: Bench) -> None:
    pool = await bench.pool()
    forkserver = psutil.Process(bench.runtime._forkserver.pid)
    forkserver.suspend()  # no successor can be forked
    os.kill(await bench.pid(pool), signal.SIGKILL)
    await until(lambda: not pool.ready)
    with pytest.raises(MediaWorkersUnavailable) as caught:
        await bench.run(pool, "say", seconds=0.2)
    assert caught.value.retry_after_seconds
    waiting = asyncio.ensure_future(bench.run(pool, "say"))
    await until(lambda: pool.waiting == 1)
    forkserver.resume()
    assert isinstance(await waiting, UnpackDone)


async def test_a_worker_that_answers_for_another_job_is_replaced(bench: Bench) -> None:
    pool = await bench.pool()
    with pytest.raises(MediaCostly):
        await bench.run(pool, "wrong_id")
    assert pool.kills == 2
    assert isinstance(await bench.run(pool, "say"), UnpackDone)


async def test_a_pool_that_cannot_start_says_why_and_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(StartupError, match="processor cannot be loaded"):
        await bench.pool(workers=3, config="refuse")
    assert not bench.pools[0].ready


async def test_stop_finishes_what_runs_and_refuses_what_waits(bench: Bench) -> None:
    pool = await bench.pool()
    running = asyncio.ensure_future(bench.run(pool, "sleep 0.2"))
    waiting = asyncio.ensure_future(bench.run(pool, "say"))
    await until(lambda: pool.waiting == 1)
    await pool.stop(seconds_max=20)
    assert isinstance(await running, UnpackDone)
    with pytest.raises(MediaWorkersUnavailable):
        await waiting
    with pytest.raises(MediaWorkersUnavailable):
        await bench.run(pool, "say")
    assert pool.restarts == 0


async def test_stop_does_not_wait_for_ever(bench: Bench) -> None:
    pool = await bench.pool()
    running = asyncio.ensure_future(bench.run(pool, "sleep 600"))
    await until(lambda: pool.busy == 1)
    await pool.stop(seconds_max=0.1)
    with pytest.raises(MediaWorkersUnavailable):
        await running


async def test_tenants_are_served_in_turn(bench: Bench) -> None:
    pool = await bench.pool()
    finished: list[str] = []

    async def sent(whom: str, command: str) -> None:
        await bench.run(pool, command, whom=whom)
        finished.append(whom)

    async with asyncio.TaskGroup() as group:
        group.create_task(sent("busy", "sleep 1"))
        await until(lambda: pool.busy == 1)
        for whom in ("busy", "busy", "busy", "busy", "other", "third", "other"):
            group.create_task(sent(whom, "sleep 0.01"))
        await until(lambda: pool.waiting == 7)
    assert finished == ["busy", "busy", "other", "third", "busy", "other", "busy", "busy"]
    assert pool.waiting == 0


async def test_limits_that_a_job_exceeds_are_named(bench: Bench) -> None:
    pool = await bench.pool(queue_depth_max=1, job_seconds_max=1.0)
    slow = asyncio.ensure_future(bench.run(pool, "sleep 600"))
    await until(lambda: pool.busy == 1)
    waiting = asyncio.ensure_future(bench.run(pool, "say"))
    await until(lambda: pool.waiting == 1)
    with pytest.raises(QueueFull) as full:
        await bench.run(pool, "say")
    assert (full.value.limit_name, full.value.limit, full.value.actual) == ("media.queue_depth_max", 1, 2)
    with pytest.raises(MediaCostly) as overran:
        await slow
    assert (overran.value.limit_name, overran.value.limit) == ("media.job_seconds_max", 1.0)
    assert overran.value.actual is not None
    assert overran.value.actual >= 1.0
    await waiting
