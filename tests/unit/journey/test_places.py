from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foveate.core.budget import Budget, Caller
from foveate.core.errors import HouseFull
from foveate.journey.places import Places


def caller(tenant: str = "a", **limits: Any) -> Caller:
    return Caller(tenant, Budget(**limits))


async def turns(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_those_who_wait_are_served_in_order_and_tenants_in_turn() -> None:
    places = Places(1, waiting_max=100)
    await places.enter(caller())
    served: list[str] = []

    async def one(tenant: str, number: int) -> None:
        await places.enter(caller(tenant))
        served.append(f"{tenant}{number}")

    async with asyncio.TaskGroup() as tasks:
        for tenant, number in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)):
            tasks.create_task(one(tenant, number))
        await turns()
        assert places.waiting == 6
        for _ in range(6):
            places.leave()
            await turns()
    assert served == ["a1", "b1", "c1", "a2", "b2", "a3"]
    places.leave()
    assert (places.waiting, places.taken, places.free) == (0, 0, 1)


async def test_queues_are_bounded_for_each_tenant_and_altogether() -> None:
    places = Places(1, waiting_max=3)
    await places.enter(caller())
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(places.enter(caller(tenant))) for tenant in "aab"]
        await turns()
        with pytest.raises(HouseFull) as caught:
            await places.enter(caller("a", max_tenant_waiting=2))
        assert (caught.value.limit_name, caught.value.limit, caught.value.actual) == ("max_tenant_waiting", 2, 3)
        with pytest.raises(HouseFull) as caught:
            await places.enter(caller("c"))
        assert (caught.value.limit_name, caught.value.limit) == ("limits.multimodal_waiting_max", 3)
        assert caught.value.retry_after_seconds
        places.leave()
        await turns()
        tasks.create_task(places.enter(caller("c"))).cancel()
        for task in waiting:
            task.cancel()
    assert places.waiting == 0


async def test_no_one_may_wait_where_the_queue_is_none() -> None:
    places = Places(1, waiting_max=0)
    await places.enter(caller())
    with pytest.raises(HouseFull):
        await places.enter(caller("b"))
    places.leave()
    await places.enter(caller("b"))


async def test_a_place_given_to_one_who_leaves_in_that_moment_goes_on() -> None:
    places = Places(1, waiting_max=9)
    await places.enter(caller())
    first, second = (asyncio.ensure_future(places.enter(caller())) for _ in range(2))
    await turns()
    places.leave()
    first.cancel()
    await turns()
    assert first.cancelled()
    assert second.done()
    assert (places.waiting, places.taken) == (0, 1)


async def test_one_who_leaves_the_queue_takes_no_place() -> None:
    places = Places(1, waiting_max=9)
    await places.enter(caller())
    first, second = (asyncio.ensure_future(places.enter(caller())) for _ in range(2))
    await turns()
    first.cancel()
    # The place comes free before the cancelled one had a chance to go.
    places.leave()
    await turns()
    assert second.done()
    places.leave()
    assert (places.waiting, places.taken) == (0, 0)
