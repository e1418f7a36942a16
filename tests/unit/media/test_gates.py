"""Places for transfers: bounds of the whole, of a host and of a tenant; turns; nothing left behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from foveate.core.errors import QueueFull
from foveate.core.limits import FETCH_WAITING_LIMIT
from foveate.media.gates import Gates
from foveate.observe.labels import LIMIT


def gates(total: int = 4, host: int = 2, tenant: int = 3, waiting: int = 8) -> Gates:
    return Gates(total_max=total, per_host_max=host, per_tenant_max=tenant, waiting_max=waiting)


class Crowd:
    """Transfers that stay inside until they are let go."""

    def __init__(self, made: Gates) -> None:
        self.gates = made
        self.inside: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, host: str, tenant: str) -> None:
        self.leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._stay(name, host, tenant))
        await asyncio.sleep(0)

    async def go(self, name: str) -> None:
        self.leave[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def _stay(self, name: str, host: str, tenant: str) -> None:
        async with self.gates.place(host, tenant):
            self.inside.append(name)
            await self.leave[name].wait()

    async def end(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert (self.gates.known, self.gates.waiting) == ((0, 0), 0)


async def test_a_slow_host_fills_its_own_places_only() -> None:
    crowd = Crowd(gates())
    for number in range(4):
        await crowd.come(f"slow{number}", "slow", "a")
    await crowd.come("other", "other", "b")
    assert crowd.inside == ["slow0", "slow1", "other"]
    await crowd.go("slow0")
    assert crowd.inside[-1] == "slow2"
    await crowd.end()


async def test_a_tenant_with_many_hosts_leaves_places_to_others() -> None:
    crowd = Crowd(gates())
    for number in range(5):
        await crowd.come(f"a{number}", f"host{number}", "a")
    await crowd.come("b0", "host9", "b")
    assert crowd.inside == ["a0", "a1", "a2", "b0"]
    await crowd.end()


async def test_those_who_wait_are_served_by_tenant_and_by_host_in_turn() -> None:
    crowd = Crowd(gates(total=1, tenant=1))
    await crowd.come("first", "h", "z")
    for name, host, tenant in (
        ("a-x1", "x", "a"), ("a-x2", "x", "a"), ("a-y1", "y", "a"), ("b-x1", "x", "b"),
    ):  # fmt: skip
        await crowd.come(name, host, tenant)
    for name in ("first", "a-x1", "b-x1", "a-y1"):
        await crowd.go(name)
    assert crowd.inside == ["first", "a-x1", "b-x1", "a-y1", "a-x2"]
    await crowd.end()


async def test_a_full_line_is_told_by_its_name_and_one_tenant_cannot_fill_it() -> None:
    crowd = Crowd(gates(total=1))
    await crowd.come("first", "h", "a")
    for number in range(6):
        await crowd.come(f"a{number}", "h", "a")
    with pytest.raises(QueueFull) as caught:
        await crowd.gates.enter("h", "a")
    assert (caught.value.limit_name, caught.value.limit, caught.value.actual) == ("fetch.waiting_max", 6, 7)
    assert caught.value.retry_after_seconds
    for number in range(2):
        await crowd.come(f"b{number}", "h", "b")
    with pytest.raises(QueueFull) as caught:
        await crowd.gates.enter("h", "c")
    assert (caught.value.limit_name, caught.value.limit, caught.value.actual) == ("fetch.waiting_max", 8, 9)
    await crowd.end()


def test_the_limit_that_is_named_here_is_a_value_of_the_metrics_label() -> None:
    assert FETCH_WAITING_LIMIT in LIMIT.values


@pytest.mark.parametrize("seed", range(20))
async def test_bounds_hold_and_everybody_is_served_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    made = gates(total=5, host=2, tenant=3, waiting=1000)
    inside: list[tuple[str, str]] = []
    served = 0

    async def transfer(host: str, tenant: str) -> None:
        nonlocal served
        async with made.place(host, tenant):
            inside.append((host, tenant))
            assert len(inside) <= 5
            assert sum(other == host for other, _ in inside) <= 2
            assert sum(other == tenant for _, other in inside) <= 3
            try:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                inside.remove((host, tenant))
            served += 1

    tasks = []
    cancelled = 0
    for _ in range(200):
        tasks.append(asyncio.create_task(transfer(chance.choice("hijk"), chance.choice("abc"))))
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    async with asyncio.timeout(20):
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, BaseException):
                assert isinstance(end, asyncio.CancelledError)
                cancelled += 1
    assert served + cancelled == 200
    assert (made.known, made.waiting) == ((0, 0), 0)
