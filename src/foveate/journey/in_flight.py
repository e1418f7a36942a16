"""What all requests together, and those of one tenant, may have under way: media bytes, decoded pixels, visual tokens, requests.

Nobody waits here. What does not fit now is refused as a full house (:class:`HouseFull`, to be tried again); what alone exceeds the whole
capacity never will fit, and is refused for good (:class:`MediaTotalTooLarge`). Each request has one :class:`Charge`, released at its first
token or its end; the amounts then return to exactly what they were. Text requests have none. Lives on the event loop.

Does not cover: queues for places (:mod:`foveate.journey.places`), memory itself (the arena).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from foveate.core.budget import Caller
from foveate.core.errors import FoveateError
from foveate.decisions.budget import judge_arriving_bytes
from foveate.journey.in_flight_limits import (
    QUANTITIES,
    SERVER_LIMITS,
    TENANT_LIMITS,
    WORDS,
    Quantity,
    house_full,
    tenant_capacity,
    too_much,
)
from foveate.media.transport import Progress


def _nothing() -> dict[Quantity, int]:
    return dict.fromkeys(QUANTITIES, 0)


@dataclass
class _Tenant:
    """What one tenant has under way. Kept only while that is anything, so that there are never more of these than requests."""

    requests: int = 0
    charges: int = 0
    used: dict[Quantity, int] = field(default_factory=_nothing)
    arriving: int = 0
    """Bytes of transfers that its requests wait for, which are charged when they have come."""


class InFlight:
    """The accounts of the server and of each tenant with requests under way."""

    def __init__(self, *, bytes_max: int, pixels_max: int, visual_tokens_max: int) -> None:
        self.capacity: Mapping[Quantity, int] = {
            "bytes": bytes_max,
            "pixels": pixels_max,
            "visual_tokens": visual_tokens_max,
        }
        self.requests = 0
        self._used = _nothing()
        self._tenants: dict[str, _Tenant] = {}
        self._transfers: dict[Hashable, Transfer] = {}
        self._waits: dict[Hashable, dict[Wait, None]] = {}

    @property
    def tenants(self) -> int:
        """Tenants with requests under way."""
        return len(self._tenants)

    def used(self, quantity: Quantity) -> int:
        """What is under way of all requests."""
        return self._used[quantity]

    def open(self, caller: Caller, came: Charge | None = None) -> Charge:
        """Count a multimodal request in; it takes over what ``came`` with its body. Raises HouseFull when its tenant has as many under way
        as its tier allows.
        """
        tenant = self._tenants.get(caller.tenant)
        limit = caller.budget.max_tenant_requests
        under_way = 0 if tenant is None else tenant.requests
        if under_way >= limit:
            raise house_full("requests with pictures", "max_tenant_requests", limit, under_way + 1)
        charge = Charge(self, caller, counted=True)
        if came is not None:
            charge.take_over(came)
        return charge

    def arrive(self, caller: Caller) -> Charge:
        """Return an account of what comes with a body, before it is known to be a request."""
        return Charge(self, caller, counted=False)

    def transfer(self, name: Hashable) -> Transfer:
        """Open an account of bytes that are arriving, perhaps for several requests, which know the transfer by ``name``."""
        return Transfer(self, name)

    def arriving(self, names: Iterable[Hashable]) -> int:
        """Return how many bytes of these transfers are here already."""
        return sum(self._transfers[name].size for name in set(names) if name in self._transfers)

    def _take_off(self, quantity: Quantity, amount: int) -> None:
        self._used[quantity] -= amount
        assert self._used[quantity] >= 0, f"more {quantity} were given back than had been taken"


class NoRoom(Exception):
    """A transfer that had reached ``size`` bytes has no room to go on. Whether it ever will, only those who wait for it can tell."""

    def __init__(self, size: int) -> None:
        super().__init__(f"no room for a transfer of {size} bytes or more")
        self.size = size


class Transfer:
    """Bytes on their way: they count for the server as they come, and no more once the context is left; who takes them is charged then.

    Each request that waits for them judges them as if it had been charged already (:class:`Wait`). ``came`` is how many they were, and
    stays known; ``progress`` is how they came.
    """

    def __init__(self, accounts: InFlight, name: Hashable) -> None:
        self._accounts = accounts
        self._name = name
        self.size = 0
        self.came = 0
        self.progress = Progress()

    def __enter__(self) -> Transfer:
        self._accounts._transfers[self._name] = self
        for wait in self._accounts._waits.get(self._name, ()):
            wait.transfer = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A later transfer of the same name may have begun while this one was being cancelled.
        if self._accounts._transfers.get(self._name) is self:
            del self._accounts._transfers[self._name]
        self._accounts._take_off("bytes", self.size)
        self.size = 0

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes (less, where negative). Raises NoRoom; then nothing was counted."""
        used = self._accounts._used["bytes"] + size
        if used > self._accounts.capacity["bytes"]:
            raise NoRoom(self.size + size)
        self._accounts._used["bytes"] = used
        self.size += size
        self.came = self.size
        for wait in tuple(self._accounts._waits.get(self._name, ())):
            wait.grow(size)


class Wait:
    """A request's wait for a transfer: while it lasts, what arrives counts for the request and its tenant beside what they were charged.

    ``refuse`` is called, perhaps more than once, with the error of a request for which that has become too much; the transfer itself goes
    on as long as anybody else waits for it. ``transfer`` is the one waited for last, once it has begun.
    """

    def __init__(self, charge: Charge, name: Hashable, refuse: Callable[[FoveateError], None]) -> None:
        self._charge = charge
        self._accounts = charge._accounts
        self._name = name
        self._refuse = refuse
        self._size = 0
        self._counts = False
        self.transfer: Transfer | None = None

    def __enter__(self) -> Wait:
        waits = self._accounts._waits.setdefault(self._name, {})
        # Two parts of a request may name the same URL: what arrives is there once.
        self._counts = all(other._charge is not self._charge for other in waits)
        waits[self] = None
        self.transfer = self._accounts._transfers.get(self._name)
        if self.transfer is not None:
            self.grow(self.transfer.size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._charge._arrive(-self._size)
        waits = self._accounts._waits.get(self._name, {})
        waits.pop(self, None)
        if not waits:
            self._accounts._waits.pop(self._name, None)

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes, and refuse the request where that is too much."""
        if not self._counts:
            return
        self._size += size
        self._charge._arrive(size)
        try:
            self._charge.judge_arriving()
        except FoveateError as error:
            self._refuse(error)


class Charge:
    """What one request has under way. :meth:`release` gives all of it back, once. Not ``counted``: it is no request yet."""

    def __init__(self, accounts: InFlight, caller: Caller, *, counted: bool) -> None:
        self._accounts = accounts
        self._caller = caller
        self._held = _nothing()
        self._arriving = 0
        self._open = True
        self._counted = int(counted)
        tenant = accounts._tenants.setdefault(caller.tenant, _Tenant())
        tenant.charges += 1
        tenant.requests += self._counted
        accounts.requests += self._counted

    def judge(self, quantity: Quantity, total: int) -> None:
        """Judge a request's own total against the whole capacities, whatever is under way. Raises MediaTotalTooLarge."""
        for name, capacity, _ in self._limits(quantity):
            if total > capacity:
                raise too_much(quantity, name, capacity, total)

    def add(self, quantity: Quantity, amount: int) -> None:
        """Charge ``amount`` more. Raises MediaTotalTooLarge, HouseFull; then nothing was charged."""
        assert self._open, "a request that gave everything back is not charged again"
        self.judge(quantity, self._held[quantity] + amount)
        for name, capacity, used in self._limits(quantity):
            if used + amount > capacity:
                raise house_full(WORDS[quantity], name, capacity, used + amount)
        self._accounts._used[quantity] += amount
        self._tenant.used[quantity] += amount
        self._held[quantity] += amount

    def wait(self, name: Hashable, refuse: Callable[[FoveateError], None]) -> Wait:
        """Wait for a transfer, within the context; ``refuse`` gets the error where it becomes too much for this request or its tenant."""
        return Wait(self, name, refuse)

    def judge_arriving(self) -> None:
        """Judge what was charged and what is on its way. Raises MediaTotalTooLarge, HouseFull."""
        own = self._held["bytes"] + self._arriving
        judge_arriving_bytes(self._caller.budget, own)
        limit = self._caller.budget.max_tenant_bytes
        if own > limit:
            raise too_much("bytes", TENANT_LIMITS["bytes"], limit, own)
        tenant = self._tenant.used["bytes"] + self._tenant.arriving
        if tenant > limit:
            raise house_full(WORDS["bytes"], TENANT_LIMITS["bytes"], limit, tenant)

    def _arrive(self, size: int) -> None:
        if self._open:
            self._arriving += size
            self._tenant.arriving += size

    def no_room(self, arriving: int) -> FoveateError:
        """Return the error of a request whose media, of which ``arriving`` bytes are on their way, found no room."""
        own, capacity = self._held["bytes"] + arriving, self._accounts.capacity["bytes"]
        if own > capacity:
            return too_much("bytes", SERVER_LIMITS["bytes"], capacity, own)
        return house_full(WORDS["bytes"], SERVER_LIMITS["bytes"], capacity, capacity + 1)

    def top_up(self, quantity: Quantity, total: int) -> None:
        """Charge what ``total`` has more than was charged already. Raises as :meth:`add`."""
        self.add(quantity, total - self._held[quantity])

    def take_over(self, other: Charge) -> None:
        """Have what another account of the same tenant was charged."""
        assert other._caller.tenant == self._caller.tenant
        for quantity, amount in other._held.items():
            self._held[quantity] += amount
        other._held = _nothing()

    def release(self) -> None:
        """Give everything back, and count the request out. Again is harmless."""
        if not self._open:
            return
        self._open = False
        tenant = self._tenant
        for quantity, amount in self._held.items():
            self._accounts._take_off(quantity, amount)
            tenant.used[quantity] -= amount
        tenant.arriving -= self._arriving
        self._accounts.requests -= self._counted
        tenant.requests -= self._counted
        tenant.charges -= 1
        if not tenant.charges:
            assert not any(tenant.used.values()), "a tenant without requests has nothing under way"
            del self._accounts._tenants[self._caller.tenant]

    @property
    def _tenant(self) -> _Tenant:
        return self._accounts._tenants[self._caller.tenant]

    def _limits(self, quantity: Quantity) -> tuple[tuple[str, int, int], ...]:
        """Return name, capacity and use of both limits, the tenant's first: it is the one that its owner can do something about."""
        return (
            (TENANT_LIMITS[quantity], tenant_capacity(self._caller.budget, quantity), self._tenant.used[quantity]),
            (SERVER_LIMITS[quantity], self._accounts.capacity[quantity], self._accounts.used(quantity)),
        )
