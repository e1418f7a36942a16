"""Requests that ended before the engine let go of them: who asked is answered at once, and what the engine may still read stays.

An engine that is told to drop a request answers between two of its steps, and one that hangs not before it is killed. Neither a deadline
nor a client that leaves waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from foveate.engines.port import EngineEvent
from foveate.journey.holds import Lease
from foveate.runtime.settled import settled

PARTINGS_MAX: Final = 1024
"""Beyond so many a request's end waits for its engine again: one that stands still may not be given ever more."""


class Partings:
    """Owns what is still to be done of such requests. Lives on the event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def through(
        self, events: AsyncGenerator[EngineEvent, None], leases: Callable[[], Sequence[Lease[Any]]]
    ) -> AsyncGenerator[EngineEvent, None]:
        """Yield an engine's ``events``. Cancelled before the first, it ends at once, and ``leases``, asked for then, are given back when
        the engine has let go of the request.
        """
        first = asyncio.ensure_future(anext(events))
        try:
            await asyncio.wait({first})
        except asyncio.CancelledError:
            first.cancel()
            parting = asyncio.ensure_future(_part(first, events, leases()))
            if len(self._tasks) >= PARTINGS_MAX:
                await settled(parting)
            else:
                self._tasks.add(parting)
                parting.add_done_callback(self._tasks.discard)
            raise
        async with aclosing(events):
            yield first.result()
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Wait for all of them: call it when the engines have ended."""
        await asyncio.gather(*self._tasks)


async def _part(
    first: asyncio.Future[EngineEvent], events: AsyncGenerator[EngineEvent, None], leases: Sequence[Lease[Any]]
) -> None:
    try:
        await settled(first)
        await events.aclose()
    finally:
        for lease in leases:
            lease.release()
