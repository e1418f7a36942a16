"""A bounded number of places for multimodal requests, and bounded queues for them: one for each tenant, served in turn.

A tenant's queue is served in order of arrival, and the tenants' queues one place each in rotation, so that a tenant that sends a hundred
requests at once delays another's first one by a single turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Final

from foveate.core.budget import Caller
from foveate.core.errors import HouseFull

WAITING_LIMIT: Final = "limits.multimodal_waiting_max"
RETRY_AFTER_SECONDS: Final = 1.0


class Places:
    """Counts those inside and those who wait. Whoever entered must leave, once. Lives on the event loop."""

    def __init__(self, places_max: int, *, waiting_max: int) -> None:
        self.waiting = 0
        self.free = places_max
        self._places_max = places_max
        self._waiting_max = waiting_max
        # Only tenants that wait; the first is the next to be served.
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def taken(self) -> int:
        """Places that are in use."""
        return self._places_max - self.free

    async def enter(self, caller: Caller) -> None:
        """Wait for a place. The wait ends with the caller's own deadline or cancellation.

        Raises HouseFull when as many wait already as may, of this tenant or altogether.
        """
        if self.free and not self._queues:
            self.free -= 1
            return
        self._judge(caller)
        queue = self._queues.setdefault(caller.tenant, deque())
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The place was given in the same moment: it goes to the next.
                self.leave()
            raise
        finally:
            self._forget(caller.tenant, turn)

    def leave(self) -> None:
        """Give the place to the next in turn."""
        self.free += 1
        assert self.free <= self._places_max, "a place was left more often than entered"
        while self.free and self._queues:
            tenant, queue = next(iter(self._queues.items()))
            turn = queue.popleft()
            self.waiting -= 1
            if queue:
                self._queues.move_to_end(tenant)
            else:
                del self._queues[tenant]
            if not turn.done():
                self.free -= 1
                turn.set_result(None)

    def _judge(self, caller: Caller) -> None:
        own = len(self._queues.get(caller.tenant, ()))
        for name, limit, waiting in (
            ("max_tenant_waiting", caller.budget.max_tenant_waiting, own),
            (WAITING_LIMIT, self._waiting_max, self.waiting),
        ):
            if waiting >= limit:
                raise HouseFull(
                    f"{waiting} requests with pictures wait already; at most {limit} may. Try again shortly.",
                    limit_name=name,
                    limit=limit,
                    actual=waiting + 1,
                    retry_after_seconds=RETRY_AFTER_SECONDS,
                )

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        """Take out of the queue one who will not come."""
        queue = self._queues.get(tenant)
        if queue is not None and turn in queue:
            queue.remove(turn)
            self.waiting -= 1
            if not queue:
                del self._queues[tenant]
