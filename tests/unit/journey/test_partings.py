"""A request ends when it is cancelled; what its engine may read is given back when the engine has let go of it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest

from foveate.core.errors import EngineDied
from foveate.engines.port import EngineEvent
from foveate.journey import partings as module
from foveate.journey.partings import Partings


class _Lease:
    def __init__(self) -> None:
        self.entry = None
        self.open = True

    def again(self) -> "_Lease":
        return self

    def release(self) -> None:
        self.open = False


class _Engine:
    """Answers ``events`` when it is told to, and lets go of a request when it is told to."""

    def __init__(self, *events: str) -> None:
        self.goes_on, self.lets_go = asyncio.Event(), asyncio.Event()
        self.closed = False
        self._events = events

    async def generate(self) -> AsyncGenerator[EngineEvent, None]:
        try:
            await self.goes_on.wait()
            for event in self._events:
                if event == "dies":
                    raise EngineDied
                yield cast(Any, event)
        except asyncio.CancelledError:
            await self.lets_go.wait()
            raise
        finally:
            self.closed = True


async def read(partings: Partings, engine: _Engine, lease: _Lease, heard: list[Any]) -> None:
    async with aclosing(partings.through(engine.generate(), lambda: [cast(Any, lease)])) as events:
        heard += [event async for event in events]


async def test_what_is_not_cancelled_passes_through_and_holds_nothing() -> None:
    partings, engine, lease, heard = Partings(), _Engine("one", "two"), _Lease(), cast(list[Any], [])
    engine.goes_on.set()
    await read(partings, engine, lease, heard)
    assert (heard, engine.closed, lease.open) == (["one", "two"], True, True)
    dying = _Engine("dies")
    dying.goes_on.set()
    with pytest.raises(EngineDied):
        await read(partings, dying, lease, heard)


async def test_a_cancelled_one_ends_before_its_engine_lets_go_and_its_lease_after() -> None:
    partings, engine, lease = Partings(), _Engine("one"), _Lease()
    reading = asyncio.ensure_future(read(partings, engine, lease, []))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})
    assert reading.cancelled()
    assert (engine.closed, lease.open) == (False, True)
    engine.lets_go.set()
    await partings.aclose()
    assert (engine.closed, lease.open) == (True, False)


async def test_an_answer_that_came_in_the_same_moment_is_closed_too() -> None:
    partings, engine, lease = Partings(), _Engine("one", "two"), _Lease()
    reading = asyncio.ensure_future(read(partings, engine, lease, []))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    engine.goes_on.set()
    reading.cancel()
    await asyncio.wait({reading})
    engine.lets_go.set()
    await partings.aclose()
    assert (engine.closed, lease.open) == (True, False)


async def test_too_many_wait_for_their_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTINGS_MAX", 0)
    partings, engine, lease = Partings(), _Engine("one"), _Lease()
    reading = asyncio.ensure_future(read(partings, engine, lease, []))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not reading.done()
    engine.lets_go.set()
    await asyncio.wait({reading})
    assert (engine.closed, lease.open) == (True, False)
