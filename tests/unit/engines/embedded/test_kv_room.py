"""Room for K/V on their way: in order, within its bytes, and free again whoever leaves when."""

from __future__ import annotations

import asyncio

import pytest

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, InvalidParameter
from foveate.core.memory import Slot
from foveate.engines.embedded.kv_room import KvRoom, Room
from foveate.runtime.arena import Arena


def room_of(size: int) -> KvRoom:
    return KvRoom(Slot(64 << 10, size))


def later() -> float:
    return now() + 30


async def waiting(rooms: KvRoom, size: int) -> asyncio.Task[Room]:
    """Return a task that waits for room."""
    task = asyncio.ensure_future(rooms.take(size, deadline=later()))
    await asyncio.sleep(0)
    return task


async def test_it_lies_in_a_region_of_its_own() -> None:
    arena = Arena(64 << 10, apart_bytes=8192)
    rooms = KvRoom(arena.apart)
    one, other = [await rooms.take(size, deadline=later()) for size in (100, 8000)]
    assert {one.slot.size, other.slot.size} == {100, 8000}
    assert min(one.slot.offset, other.slot.offset) >= arena.capacity_bytes
    assert not range(
        max(one.slot.offset, other.slot.offset),
        min(one.slot.offset + one.slot.size, other.slot.offset + other.slot.size),
    )
    arena.view(other.slot)[:] = b"x" * 8000
    assert (arena.used_bytes, rooms.used_bytes) == (0, 8128)
    one.release()
    other.release()
    assert rooms.used_bytes == 0


async def test_who_finds_none_waits_in_order() -> None:
    rooms = room_of(4096)
    first = await rooms.take(4096, deadline=later())
    large, small = await waiting(rooms, 4000), await waiting(rooms, 64)
    assert rooms.waiting == 2
    first.retain()
    first.release()
    await asyncio.sleep(0)
    assert not large.done(), "another still holds it"
    first.release()
    assert (await large).slot.size == 4000
    assert (await small).slot.size == 64


async def test_who_leaves_makes_way_for_those_behind() -> None:
    rooms = room_of(4096)
    held = await rooms.take(2048, deadline=later())
    large, small = await waiting(rooms, 4096), await waiting(rooms, 1024)
    large.cancel()
    assert (await small).slot.size == 1024
    given = await waiting(rooms, 4096)
    held.release()
    (await small).release()
    given.cancel()  # in the moment in which it is given
    await asyncio.gather(given, large, return_exceptions=True)
    assert rooms.waiting == 0
    assert (await rooms.take(4096, deadline=now())).slot.size == 4096, "all of it is free again"


async def test_what_never_fits_and_what_comes_too_late() -> None:
    rooms = room_of(4096)
    with pytest.raises(InvalidParameter) as refused:
        await rooms.take(4097, deadline=later())
    assert (refused.value.limit_name, refused.value.limit) == ("topology.kv_bytes_max", 4096)
    await rooms.take(4096, deadline=later())
    with pytest.raises(DeadlineExceeded):
        await rooms.take(64, deadline=now() - 1)
    assert rooms.waiting == 0
