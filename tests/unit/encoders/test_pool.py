"""The encode workers as real processes that hold no vision tower: whatever happens to them, every picture is answered once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from foveate.core.clock import now
from foveate.core.errors import (
    DeadlineExceeded,
    EncodeFailed,
    EncodersUnavailable,
    EngineUnavailable,
    QueueFull,
    StartupError,
)
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot, TensorBundle
from foveate.encoders.messages import EncoderConfig
from foveate.encoders.pool import EncoderPool
from foveate.encoders.port import UNKNOWN, Purpose
from foveate.encoders.workers import PoolConfig
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime

pytestmark = pytest.mark.timeout(60)
LOCAL = 200
"""What the encoder in the engine's process writes, where workers write their index."""


class Engine:
    """The encoder in the engine's process."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.asked: list[str] = []

    async def encode(
        self, prepared: PreparedImage, out: Slot, *, deadline: float, purpose: Purpose = UNKNOWN
    ) -> EncodedImage:
        self.asked.append(prepared.replacement)
        await asyncio.sleep(0)  # as whatever asks another process does
        if prepared.replacement == "die":
            raise EngineUnavailable(detail="the engine process ended")
        self._arena.view(out)[0] = LOCAL
        return EncodedImage(TensorBundle(out, (), 1), prepared.rows, ())


class Bench:
    """A pool and what asks it. Every slot is given back when encode returns, so that a late write would be seen."""

    def __init__(self, runtime: LocalRuntime, *, local: bool, **changes: Any) -> None:
        self.arena = runtime.arena
        model = changes.pop("model_dir", "version")
        batch_max = changes.pop("batch_max", 1)
        config = PoolConfig(
            **{
                "workers": 2,
                "config": EncoderConfig(model, batch_max=batch_max),
                "hang_seconds": 1.5,
                "down_seconds_max": 0.5,
                "start_seconds_max": 30,
                "entry": "tests.workers:encoding",
            }
            | changes
        )
        self.engine = Engine(self.arena)
        self.pool = EncoderPool(runtime, config, local=self.engine if local else None)

    async def encode(
        self, what: str = "", *, rows: int = 4, seconds: float = 20.0, tenant: str = "", request: str = "", of: str = ""
    ) -> int:
        """Return who encoded it."""
        inputs, out = self.arena.allocate(64), self.arena.allocate(64)
        self.arena.view(inputs)[:] = bytes(64)
        prepared = PreparedImage(what, rows, TensorBundle(inputs, (), 64), {}, ())
        try:
            image = await self.pool.encode(
                prepared, out, deadline=now() + seconds, purpose=Purpose(tenant, request, of)
            )
            assert image.embeddings.slot == out
            return self.arena.view(out)[0]
        finally:
            self.arena.release(inputs)
            self.arena.release(out)

    def pids(self) -> list[int]:
        return [seat.worker.pid for seat in self.pool._workers.seats if seat.worker is not None]

    async def until(self, alive: int) -> None:
        """Wait until so many workers are there."""
        while self.pool.alive != alive:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def benches(*, local: bool = False, **changes: Any) -> AsyncIterator[Bench]:
    runtime = LocalRuntime(Arena(1 << 20), preload=("tests.workers",))
    bench = Bench(runtime, local=local, **changes)
    try:
        await bench.pool.start()
        yield bench
        await bench.pool.stop(seconds_max=5)
        assert bench.arena.slots == 0, "every slot was given back"
    finally:
        await runtime.close()


async def test_each_content_has_its_worker_and_all_have_some() -> None:
    async with benches() as bench:
        first = [await bench.encode(of=f"content {number}") for number in range(12)]
        assert set(first) == {0, 1}
        assert [await bench.encode(of=f"content {number}") for number in range(12)] == first
        assert [report.pictures for report in bench.pool.report()] == [2 * first.count(0), 2 * first.count(1)]


async def test_the_pictures_of_one_request_are_spread() -> None:
    async with benches() as bench:
        found = await asyncio.gather(*(bench.encode("sleep 0.05", request="r", of=f"{number}") for number in range(8)))
        assert 3 <= found.count(0) <= 5


async def test_a_worker_that_would_be_idle_takes_others_pictures() -> None:
    async with benches() as bench:
        slow = asyncio.ensure_future(bench.encode("sleep 3", rows=1, of="x"))
        await asyncio.sleep(0.1)
        found = await asyncio.gather(*(bench.encode("sleep 0.02", rows=1, of=f"{number}") for number in range(10)))
        assert not slow.done(), "nothing waited for the slow one"
        assert len(set(found)) == 1
        await slow


async def test_a_picture_fails_alone_and_only_after_another_worker_failed_too() -> None:
    async with benches() as bench:
        found = await asyncio.gather(bench.encode("fail"), bench.encode(), bench.encode(), return_exceptions=True)
        assert isinstance(found[0], EncodeFailed)
        assert not any(isinstance(one, BaseException) for one in found[1:])
        assert await bench.encode("fail 0", of="a") == 1
        assert await bench.encode("fail 1", of="a") == 0


async def test_a_worker_that_fails_what_others_can_encode_is_replaced() -> None:
    async with benches() as bench:
        before = set(bench.pids())
        for number in range(12):
            assert await bench.encode("fail 0", of=f"{number}") == 1
        while bench.pool.report()[0].restarts == 0 or bench.pool.alive < 2:
            await asyncio.sleep(0.01)
        assert len(before & set(bench.pids())) == 1
        assert bench.pool.report()[0].state == "recovering"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_what_a_killed_or_stopped_worker_held_is_encoded_by_another(how: signal.Signals) -> None:
    async with benches() as bench:
        tasks = [asyncio.ensure_future(bench.encode("sleep 0.2", of=f"{number}")) for number in range(8)]
        await asyncio.sleep(0.1)
        os.kill(bench.pids()[0], how)
        found = await asyncio.gather(*tasks)
        assert found.count(1) >= 4
        await bench.until(alive=2)
        assert [report.restarts for report in bench.pool.report()] == [1, 0]


async def test_a_picture_that_kills_workers_is_given_up_and_others_are_not() -> None:
    async with benches() as bench:
        found = await asyncio.gather(
            bench.encode("die"), *(bench.encode("sleep 0.02") for _ in range(6)), return_exceptions=True
        )
        assert isinstance(found[0], EncodeFailed)
        assert "3 encode workers died" in found[0].detail
        assert not [one for one in found[1:] if isinstance(one, BaseException)]
        assert await bench.encode("die_once") in (0, 1)


async def test_a_batch_that_takes_too_long_costs_its_worker_not_the_others() -> None:
    async with benches(batch_seconds_max=0.5, hang_seconds=600) as bench:
        found = await asyncio.gather(
            bench.encode("sleep 30"), *(bench.encode(of=f"{number}") for number in range(6)), return_exceptions=True
        )
        assert isinstance(found[0], EncodeFailed)
        assert not [one for one in found[1:] if isinstance(one, BaseException)]


async def test_with_none_left_the_engine_encodes_until_one_is_back() -> None:
    async with benches(local=True, workers=1, down_seconds_max=20) as bench:
        held = [asyncio.ensure_future(bench.encode("sleep 0.3")) for _ in range(4)]
        await asyncio.sleep(0.05)
        os.kill(bench.pids()[0], signal.SIGKILL)
        assert await asyncio.gather(*held) == [0, LOCAL, LOCAL, LOCAL], "what ran then waits for the next worker"
        assert bench.pool.local_pictures == 3
        assert await bench.encode() == 0


async def test_a_picture_that_kills_workers_is_never_given_to_the_engine() -> None:
    async with benches(local=True, workers=1, down_seconds_max=20) as bench:
        with pytest.raises(EncodeFailed):
            await bench.encode("die")
        assert bench.engine.asked == []


async def test_what_ran_when_the_last_worker_died_is_the_engines_when_none_comes_back() -> None:
    async with benches(local=True, workers=1) as bench:
        bench.pool._workers._config = PoolConfig(1, EncoderConfig("refuse"), entry="tests.workers:encoding")
        assert await bench.encode("die_once") == LOCAL
        assert bench.pool.alive == 0
        with pytest.raises(EngineUnavailable):
            await bench.encode("die")


async def test_what_a_worker_and_then_the_engine_ended_with_is_not_to_be_tried_again() -> None:
    async with benches(local=True, workers=1) as bench:
        bench.pool._workers._config = PoolConfig(1, EncoderConfig("refuse"), entry="tests.workers:encoding")
        with pytest.raises(EncodersUnavailable) as caught:
            await bench.encode("die")
        assert "the engine's process is gone too" in caught.value.detail
        assert bench.engine.asked == ["die"]


async def test_what_ran_when_the_last_worker_was_taken_away_is_the_engines_at_once() -> None:
    async with benches(local=True, workers=1, down_seconds_max=600, hang_seconds=600) as bench:
        task = asyncio.ensure_future(bench.encode("sleep 30"))
        await asyncio.sleep(0.1)
        await bench.pool.resize(0, drain_seconds_max=0.1)
        assert await task == LOCAL


async def test_with_none_left_and_no_engine_that_encodes_it_is_unavailable() -> None:
    async with benches(workers=1) as bench:
        bench.pool._workers._config = PoolConfig(1, EncoderConfig("refuse"), entry="tests.workers:encoding")
        os.kill(bench.pids()[0], signal.SIGKILL)
        await bench.until(alive=0)
        with pytest.raises(EncodersUnavailable):
            await bench.encode()


async def test_with_none_left_pictures_wait_for_the_next_one() -> None:
    async with benches(workers=1, down_seconds_max=20) as bench:
        tasks = [asyncio.ensure_future(bench.encode("sleep 0.1")) for _ in range(3)]
        await asyncio.sleep(0.05)
        os.kill(bench.pids()[0], signal.SIGKILL)
        assert await asyncio.gather(*tasks) == [0, 0, 0]


async def test_cancelling_what_has_not_started_is_free_and_slots_come_back_when_nobody_writes() -> None:
    async with benches(workers=1) as bench:
        tasks = [asyncio.ensure_future(bench.encode("sleep 0.5")) for _ in range(6)]
        await asyncio.sleep(0.1)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks[2:], timeout=0.2)
        assert all(task.done() for task in tasks[2:]), "they waited in the line"
        assert bench.arena.slots == 4, "of the one that runs and the one behind it"
        await asyncio.gather(*tasks, return_exceptions=True)
        assert bench.pool.report()[0].pictures == 1


async def test_a_deadline_passes_without_the_worker_and_a_dead_workers_slots_come_back() -> None:
    async with benches() as bench:
        with pytest.raises(DeadlineExceeded):
            await bench.encode("sleep 0.4", seconds=0.1)
        task = asyncio.ensure_future(bench.encode("stop_once", seconds=0.1))
        with pytest.raises(DeadlineExceeded):
            await task


async def test_the_line_is_bounded_and_no_tenant_has_all_of_it() -> None:
    async with benches(workers=1, queue_max=4) as bench:
        tasks = [asyncio.ensure_future(bench.encode("sleep 0.2", tenant="a")) for _ in range(6)]
        found = await asyncio.gather(*tasks, bench.encode(tenant="b"), return_exceptions=True)
        refused = [place for place, one in enumerate(found) if isinstance(one, QueueFull)]
        assert refused == [5], "two at the worker, three of four places in the line"


async def test_batches_hold_pictures_of_one_shape_of_any_request() -> None:
    async with benches(workers=1, batch_max=3) as bench:
        await asyncio.gather(*(bench.encode("sleep 0.05", request=f"{number}") for number in range(8)))
        (report,) = bench.pool.report()
        assert report.pictures == 8
        assert report.batches == 4, "one, one behind it, three, three"


async def test_a_worker_that_breaks_the_rules_is_killed_and_its_picture_moves() -> None:
    async with benches() as bench:
        with pytest.raises(EncodeFailed):
            await bench.encode("wrong_id")
        await bench.until(alive=2)
        assert await bench.encode() in (0, 1)


async def test_a_start_that_fails_leaves_nothing() -> None:
    with pytest.raises(StartupError):
        async with benches(model_dir="refuse"):
            pass


async def test_workers_with_another_encoder_than_the_engines_are_not_used() -> None:
    async with benches(model_dir="old") as bench:
        assert bench.pool.expect("old") == 0
        assert bench.pool.expect("new") == 2
        assert bench.pool.alive == 0


async def test_workers_come_and_go_and_no_picture_fails() -> None:
    async with benches(local=True, workers=1) as bench:
        found: list[int] = []
        over = asyncio.Event()

        async def ask(number: int) -> None:
            while not over.is_set():
                found.append(await bench.encode("sleep 0.01", of=f"{number} {len(found)}"))

        clients = [asyncio.ensure_future(ask(number)) for number in range(6)]
        for workers in (3, 1, 0, 2):
            await bench.pool.resize(workers, drain_seconds_max=5)
            assert (bench.pool.alive, bench.pool.wanted) == (workers, workers)
            seen = len(found)
            while len(found) < seen + 12:
                await asyncio.sleep(0.01)
            now_there = set(found[seen + 6 :])
            assert now_there <= ({LOCAL} if workers == 0 else set(range(workers)))
        over.set()
        await asyncio.gather(*clients)
        assert bench.pool.restarts == 0


async def test_a_worker_that_does_not_finish_in_time_is_ended_and_its_picture_moves() -> None:
    async with benches(hang_seconds=600) as bench:
        tasks = [asyncio.ensure_future(bench.encode("stop_once 1", of=f"{number}")) for number in range(4)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await bench.pool.resize(1, drain_seconds_max=0.1)
        assert await asyncio.gather(*tasks) == [0] * 4


async def test_none_is_refused_where_nobody_would_encode_and_a_failed_start_changes_nothing() -> None:
    async with benches(workers=1) as bench:
        with pytest.raises(ValueError, match="nobody"):
            await bench.pool.resize(0, drain_seconds_max=1)
        bench.pool._workers._config = PoolConfig(1, EncoderConfig("refuse"), entry="tests.workers:encoding")
        with pytest.raises(StartupError):
            await bench.pool.resize(3, drain_seconds_max=1)
        assert [report.worker for report in bench.pool.report()] == [0]
        assert await bench.encode() == 0


async def test_a_pool_that_is_stopped_while_it_grows_leaves_no_worker_and_is_given_none() -> None:
    runtime = LocalRuntime(Arena(1 << 20), preload=("tests.workers",))
    try:
        bench = Bench(runtime, local=True, workers=1)
        await bench.pool.start()
        bench.pool._workers._config = PoolConfig(1, EncoderConfig("version"), entry="tests.workers:never_ready")
        growing = asyncio.ensure_future(bench.pool.resize(3, drain_seconds_max=1))
        while len(runtime.processes()) < 5:
            await asyncio.sleep(0.01)
        await bench.pool.stop(seconds_max=5)
        with pytest.raises(StartupError):
            await growing
        await bench.pool.resize(2, drain_seconds_max=1)
        assert [name for name, _ in runtime.processes()] == ["gateway", "forkserver"]
    finally:
        await runtime.close()


async def test_chaos_costs_no_picture_and_no_slot() -> None:
    """Workers are killed and stopped at random under load: every picture is encoded, once, by somebody who may still write to its slot."""
    chance = random.Random(7)
    async with benches(local=True, workers=3, batch_max=2, start_seconds_max=10) as bench:
        over = asyncio.Event()
        done = 0

        async def client(number: int) -> None:
            nonlocal done
            while not over.is_set():
                tenant, request = f"tenant {number % 3}", f"{number} {done}"
                await bench.encode(f"sleep {chance.random() / 50}", tenant=tenant, request=request, of=f"{done % 40}")
                done += 1

        async def chaos() -> None:
            for _ in range(12):
                seen = done
                for pid in chance.sample(bench.pids(), k=min(1, len(bench.pids()))):
                    os.kill(pid, chance.choice((signal.SIGKILL, signal.SIGSTOP)))
                while done < seen + 12:
                    await asyncio.sleep(chance.random() * 0.3)
            over.set()

        await asyncio.gather(chaos(), *(client(number) for number in range(16)))
        await bench.until(alive=3)
        assert bench.pool.restarts >= 3
