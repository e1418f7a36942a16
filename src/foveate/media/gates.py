"""How many transfers may run at once: altogether, from one host, and for one tenant. Who waits is served by tenant in turn.

Within a tenant its hosts are served in turn, and one host's transfers in the order they were asked for: neither a tenant nor a host with
a thousand transfers delays another's first one by more than a turn. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from foveate.core.errors import QueueFull
from foveate.core.limits import FETCH_WAITING_LIMIT


@dataclass(slots=True)
class _Tenant:
    """``lines`` has those who wait, by host; the first host is the next to be served."""

    running: int = 0
    waiting: int = 0
    lines: OrderedDict[str, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)


class Gates:
    """A bound on all places, one on each host's and one on each tenant's. A slow host fills its own places, never everybody's; a tenant
    fills its own, and three quarters of those to wait in.
    """

    def __init__(self, *, total_max: int, per_host_max: int, per_tenant_max: int, waiting_max: int) -> None:
        self.waiting = 0
        self._free = total_max
        self._per_host_max = per_host_max
        self._per_tenant_max = per_tenant_max
        self._waiting_max = waiting_max
        self._tenant_waiting_max = waiting_max - waiting_max // 4
        self._hosts: dict[str, int] = {}
        # Only tenants with somebody inside or waiting; the first is the next to be served.
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    @property
    def known(self) -> tuple[int, int]:
        """Hosts with somebody inside, and tenants with somebody inside or waiting."""
        return len(self._hosts), len(self._tenants)

    @asynccontextmanager
    async def place(self, host: str, tenant: str) -> AsyncIterator[None]:
        """Wait for a place and hold it. Raises QueueFull at once when too many wait already."""
        await self.enter(host, tenant)
        try:
            yield
        finally:
            self.leave(host, tenant)

    async def enter(self, host: str, tenant: str) -> None:
        """Wait for a place; whoever got one must :meth:`leave`, once. Raises QueueFull as :meth:`place`."""
        account = self._tenants.get(tenant)
        # Whoever waits is kept by a full gate that this one may not have to pass; nobody is overtaken who could go in.
        if self._open(host, 0 if account is None else account.running):
            self._take(host, self._tenants.setdefault(tenant, _Tenant()))
            return
        self._judge(0 if account is None else account.waiting)
        account = self._tenants.setdefault(tenant, _Tenant())
        turn = asyncio.get_running_loop().create_future()
        account.lines.setdefault(host, deque()).append(turn)
        account.waiting += 1
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(host, tenant)  # given in the same moment: it goes to the next
            else:
                self._forget(host, tenant, turn)
            raise

    def leave(self, host: str, tenant: str) -> None:
        """Give the place to the next in turn."""
        self._free += 1
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]
        self._tenants[tenant].running -= 1
        self._clear(tenant)
        while (found := self._next()) is not None:
            self._serve(*found)

    def _open(self, host: str, running: int) -> bool:
        return self._free > 0 and running < self._per_tenant_max and self._hosts.get(host, 0) < self._per_host_max

    def _take(self, host: str, account: _Tenant) -> None:
        self._free -= 1
        self._hosts[host] = self._hosts.get(host, 0) + 1
        account.running += 1

    def _next(self) -> tuple[str, str] | None:
        """Return tenant and host of the next who may go in."""
        if not self._free:
            return None
        for tenant, account in self._tenants.items():
            for host in account.lines:
                if self._open(host, account.running):
                    return tenant, host
        return None

    def _serve(self, tenant: str, host: str) -> None:
        account = self._tenants[tenant]
        turn = account.lines[host].popleft()
        account.waiting -= 1
        self.waiting -= 1
        if account.lines[host]:
            account.lines.move_to_end(host)
        else:
            del account.lines[host]
        self._tenants.move_to_end(tenant)
        if not turn.done():
            self._take(host, account)
            turn.set_result(None)
        self._clear(tenant)

    def _forget(self, host: str, tenant: str, turn: asyncio.Future[None]) -> None:
        """Take out of its line one who will not come."""
        account = self._tenants.get(tenant)
        line = None if account is None else account.lines.get(host)
        if account is None or line is None or turn not in line:
            return
        line.remove(turn)
        account.waiting -= 1
        self.waiting -= 1
        if not line:
            del account.lines[host]
        self._clear(tenant)

    def _clear(self, tenant: str) -> None:
        account = self._tenants[tenant]
        if not account.running and not account.waiting:
            del self._tenants[tenant]

    def _judge(self, own: int) -> None:
        for limit, waiting in ((self._tenant_waiting_max, own), (self._waiting_max, self.waiting)):
            if waiting >= limit:
                raise QueueFull(
                    f"{waiting} media downloads wait already; at most {limit} may. Try again shortly.",
                    limit_name=FETCH_WAITING_LIMIT,
                    limit=limit,
                    actual=waiting + 1,
                    retry_after_seconds=1.0,
                )
