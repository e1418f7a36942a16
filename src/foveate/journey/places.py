"""A bounded number of places, taken in order of arrival."""

from __future__ import annotations

import asyncio


class Places:
    """Counts those inside and those who wait. Whoever entered must leave, once."""

    def __init__(self, places_max: int) -> None:
        self.waiting = 0
        self._free = asyncio.Semaphore(places_max)

    async def enter(self) -> None:
        """Wait for a place. The wait ends with the caller's own deadline or cancellation."""
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    def leave(self) -> None:
        """Give the place to the next."""
        self._free.release()
