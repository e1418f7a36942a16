"""Waiting for what must be over: no cancellation cuts it short, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from foveate.runtime.settled import settled


async def test_it_waits_through_cancellations_and_raises_them_afterwards() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(settled(future))
    for _ in range(2):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    future.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("end", ["result", "error", "cancelled"])
async def test_whatever_it_ended_with_is_nobodys_concern(end: str) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(settled(future))
    await asyncio.sleep(0)
    if end == "result":
        future.set_result(None)
    elif end == "error":
        future.set_exception(ValueError(end))
    else:
        future.cancel()
    assert await waiting is None
