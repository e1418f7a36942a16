"""How many transfers may run at once, altogether and from one host, in the order they were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from foveate.core.errors import QueueFull


class Gates:
    """A bound on all transfers and one on each host's. A slow host fills its own places, never everybody's."""

    def __init__(self, *, total_max: int, per_host_max: int, waiting_max: int) -> None:
        self._total = asyncio.Semaphore(total_max)
        self._per_host_max = per_host_max
        self._waiting_max = waiting_max
        self._waiting = 0
        self._hosts: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @property
    def hosts(self) -> int:
        """Hosts with a transfer that runs or waits."""
        return len(self._hosts)

    @asynccontextmanager
    async def place(self, host: str) -> AsyncIterator[None]:
        """Wait for a place and hold it. Raises QueueFull at once when too many wait already."""
        if self._waiting >= self._waiting_max:
            raise QueueFull("Too many media downloads are waiting. Try again shortly.", retry_after_seconds=1.0)
        gate, users = self._hosts.get(host, (asyncio.Semaphore(self._per_host_max), 0))
        self._hosts[host] = (gate, users + 1)
        try:
            self._waiting += 1
            try:
                # The host's place first: whoever waits for a slow host must not hold one of everybody's.
                await gate.acquire()
                try:
                    await self._total.acquire()
                except BaseException:
                    gate.release()
                    raise
            finally:
                self._waiting -= 1
            try:
                yield
            finally:
                self._total.release()
                gate.release()
        finally:
            users = self._hosts[host][1] - 1
            if users:
                self._hosts[host] = (gate, users)
            else:
                del self._hosts[host]
