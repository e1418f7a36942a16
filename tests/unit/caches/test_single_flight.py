"""Sharing work: who waits for it, who is hurt by whom (nobody), and that every hold is given back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveate.caches.single_flight import Notice, SingleFlight
from foveate.core.errors import Draining, FetchFailed


class Hold:
    """A counted hold on a result: made with one user, freed when the last one leaves."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.users = 1
        world.open += 1

    def again(self) -> Hold:
        assert self.users > 0, "leased from a freed hold"
        self.users += 1
        return self

    def release(self) -> None:
        assert self.users > 0, "released more often than leased"
        self.users -= 1
        if not self.users:
            self.world.open -= 1


class World:
    """Counts work begun, and holds that are open."""

    def __init__(self) -> None:
        self.open = 0
        self.begun = 0
        self.cancelled = 0
        self.gate = asyncio.Event()

    async def work(self) -> Hold:
        self.begun += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Hold(self)


Flights = SingleFlight[str, Hold]


def flights() -> Flights:
    return SingleFlight(Hold.release)


def waiter(shared: Flights, start: Callable[[], Awaitable[Hold]], key: str = "k") -> asyncio.Task[tuple[Hold, bool]]:
    return asyncio.create_task(shared.share(key, start, Hold.again))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_work_for_all_and_a_lease_for_each() -> None:
    world = World()
    async with flights() as shared:
        waiters = [waiter(shared, world.work) for _ in range(5)]
        await settle()
        assert len(shared) == 1
        world.gate.set()
        results = await asyncio.gather(*waiters)
        assert world.begun == 1
        assert [was_shared for _, was_shared in results] == [False, True, True, True, True]
        assert len(shared) == 0
        for hold, _ in results:
            assert world.open == 1
            hold.release()
        assert world.open == 0


async def test_what_work_tells_before_its_end_is_heard_by_all_who_wait() -> None:
    world = World()
    notice: Notice[str] = Notice()
    heard: dict[int, list[str]] = {number: [] for number in range(4)}

    def wait(shared: Flights, number: int) -> asyncio.Task[tuple[Hold, bool]]:
        own = notice if number == 0 else Notice[str]()  # only that of whoever began is told
        return asyncio.create_task(
            shared.share("k", world.work, Hold.again, notice=own, hear=lambda news: heard[number].append(news))
        )

    async with flights() as shared:
        waiters = [wait(shared, number) for number in range(3)]
        await settle()
        waiters[1].cancel()
        await settle()
        notice.tell("rows")
        late = wait(shared, 3)
        await settle()
        assert heard == {0: ["rows"], 1: [], 2: ["rows"], 3: ["rows"]}
        world.gate.set()
        for hold, _ in await asyncio.gather(waiters[0], waiters[2], late):
            hold.release()


async def test_who_joined_late_begins_once_anew_when_the_time_of_those_before_ran_out() -> None:
    begun: list[int] = []
    ended: list[int] = []
    gates = [asyncio.Event() for _ in range(3)]
    world = World()

    async def call(number: int) -> tuple[Hold, bool]:
        async def work() -> Hold:
            flight = len(begun)
            begun.append(number)
            await gates[flight].wait()
            if flight < 2:
                raise FetchFailed(detail="out of time")
            return Hold(world)

        return await shared.share(
            "k", work, Hold.again, ended=lambda: ended.append(number), anew=lambda error: error.detail == "out of time"
        )

    async with flights() as shared:
        calls = [asyncio.create_task(call(number)) for number in range(3)]
        await settle()
        assert (begun, ended) == ([0], [])
        gates[0].set()
        await settle()
        assert (begun, ended) == ([0, 1], [0]), "one of those who joined begins, the other joins it"
        with pytest.raises(FetchFailed):
            await calls[0]
        late = asyncio.create_task(call(3))
        await settle()
        gates[1].set()
        await settle()
        for number in (1, 2):
            with pytest.raises(FetchFailed):
                await calls[number]
        assert begun == [0, 1, 3]
        gates[2].set()
        hold, was_shared = await late
        assert not was_shared
        hold.release()
        await settle()
        assert sorted(ended) == [0, 1, 2, 3]
        assert world.open == 0


async def test_other_failures_of_joined_work_are_everybodys() -> None:
    world = World()

    async def work() -> Hold:
        world.begun += 1
        await world.gate.wait()
        raise FetchFailed(detail="refused")

    async with flights() as shared:
        calls = [
            asyncio.create_task(shared.share("k", work, Hold.again, anew=lambda error: error.detail == "out of time"))
            for _ in range(3)
        ]
        await settle()
        world.gate.set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, FetchFailed) for end in ends)
        assert world.begun == 1


async def test_different_keys_do_not_share() -> None:
    world = World()
    world.gate.set()
    async with flights() as shared:
        results = await asyncio.gather(waiter(shared, world.work, "a"), waiter(shared, world.work, "b"))
        assert world.begun == 2
        assert not any(was_shared for _, was_shared in results)


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_one_that_leaves_hurts_nobody_the_first_included(gone: int) -> None:
    world = World()
    async with flights() as shared:
        waiters = [waiter(shared, world.work) for _ in range(3)]
        await settle()
        waiters[gone].cancel()
        await settle()
        assert waiters[gone].cancelled()
        world.gate.set()
        for index, each in enumerate(waiters):
            if index != gone:
                (await each)[0].release()
        assert (world.begun, world.cancelled, world.open) == (1, 0, 0)


async def test_the_last_that_leaves_cancels_the_work_and_the_next_begins_anew() -> None:
    world = World()
    async with flights() as shared:
        waiters = [waiter(shared, world.work) for _ in range(3)]
        await settle()
        for each in waiters:
            each.cancel()
        await asyncio.wait(waiters)
        assert len(shared) == 0
        fresh = waiter(shared, world.work)
        await settle()
        assert (world.begun, world.cancelled) == (2, 1)
        world.gate.set()
        hold, was_shared = await fresh
        assert not was_shared
        hold.release()
        assert world.open == 0


async def test_work_that_ends_although_cancelled_leaves_no_hold() -> None:
    world = World()

    async def stubborn() -> Hold:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return Hold(world)
        raise AssertionError

    async with flights() as shared:
        only = waiter(shared, stubborn)
        await settle()
        only.cancel()
        await settle()
        assert only.cancelled()
        assert world.open == 0


async def test_one_cancelled_in_the_moment_of_the_result_takes_no_lease() -> None:
    world = World()
    async with flights() as shared:
        stays, leaves = waiter(shared, world.work), waiter(shared, world.work)
        await settle()
        world.gate.set()
        # The work wakes in the next turn of the loop and its waiters in the one after: between the two lies the moment.
        await asyncio.sleep(0)
        assert len(shared) == 0
        assert not leaves.done()
        leaves.cancel()
        hold, _ = await stays
        await settle()
        assert leaves.cancelled()
        hold.release()
        assert world.open == 0


async def test_a_failure_reaches_all_as_their_own_and_is_not_kept() -> None:
    async def fail() -> Hold:
        await asyncio.sleep(0)
        raise FetchFailed("It broke.", detail="private", param="messages.0", retry_after_seconds=2.0)

    world = World()
    world.gate.set()
    async with flights() as shared:
        failures = await asyncio.gather(*(waiter(shared, fail) for _ in range(3)), return_exceptions=True)
        assert len({id(failure) for failure in failures}) == 3
        for index, failure in enumerate(failures):
            assert isinstance(failure, FetchFailed)
            assert (failure.public, failure.detail, failure.param) == ("It broke.", "private", "messages.0")
            assert failure.retry_after_seconds == 2.0
            failure.part = index
        assert [failure.part for failure in failures if isinstance(failure, FetchFailed)] == [0, 1, 2]
        hold, was_shared = await waiter(shared, world.work)
        assert not was_shared
        hold.release()


async def test_an_error_of_another_kind_reaches_all() -> None:
    async def fail() -> Hold:
        raise ZeroDivisionError

    async with flights() as shared:
        failures = await asyncio.gather(*(waiter(shared, fail) for _ in range(2)), return_exceptions=True)
        assert [type(failure) for failure in failures] == [ZeroDivisionError] * 2


async def test_closing_cancels_the_work_and_tells_its_waiters() -> None:
    world = World()
    shared = flights()
    waiters = [waiter(shared, world.work, key) for key in "aab"]
    await settle()
    await shared.aclose()
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(result) for result in results] == [Draining] * 3
    assert (world.cancelled, world.open) == (2, 0)
    with pytest.raises(Draining):
        await shared.share("a", world.work, Hold.again)


async def test_a_lease_that_fails_gives_the_hold_back() -> None:
    world = World()
    world.gate.set()

    def refuse(hold: Hold) -> Hold:
        raise MemoryError

    async with flights() as shared:
        with pytest.raises(MemoryError):
            await shared.share("k", world.work, refuse)
        assert world.open == 0


async def storm(seed: int) -> None:
    """Many callers on few keys; each leaves at a random moment or not at all; some work fails, some ends at once."""
    chance = random.Random(seed)
    world = World()
    shared = flights()
    alive: set[str] = set()

    def start(key: str) -> Callable[[], Awaitable[Hold]]:
        async def work() -> Hold:
            assert key not in alive, "the same work runs twice"
            alive.add(key)
            try:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                alive.discard(key)
            if chance.random() < 0.2:
                raise FetchFailed
            return Hold(world)

        return work

    async def call() -> None:
        key = chance.choice("abc")
        try:
            hold, _ = await shared.share(key, start(key), Hold.again)
        except FetchFailed:
            return
        try:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        finally:
            hold.release()

    callers: list[asyncio.Task[None]] = []
    left: set[asyncio.Task[None]] = set()
    for _ in range(60):
        callers.append(asyncio.create_task(call()))
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            leaver = chance.choice(callers)
            left.add(leaver)
            leaver.cancel()
    closed = chance.random() < 0.3
    if closed:
        await shared.aclose()
    ended = await asyncio.gather(*callers, return_exceptions=True)
    for caller, ending in zip(callers, ended, strict=True):
        if isinstance(ending, asyncio.CancelledError):
            assert caller in left
        else:
            assert ending is None or (closed and isinstance(ending, Draining))
    await shared.aclose()
    assert (len(shared), world.open) == (0, 0)


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_cancellation_leaks_nothing_and_hurts_nobody(seed: int) -> None:
    asyncio.run(storm(seed))
