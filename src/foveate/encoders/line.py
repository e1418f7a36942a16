"""The pictures that wait for an encode worker, in order of arrival, each with the worker that it belongs to. Owned by the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from foveate.core.clock import now
from foveate.decisions.encode_order import BatchBounds, WaitingPicture, choose
from foveate.encoders.ticket import Ticket
from foveate.observe.load import Load


class Line:
    """Waiting pictures and what tenants were given so far. A picture that comes back goes to the front: it had its turn."""

    def __init__(self, bounds: BatchBounds, load: Load) -> None:
        self._bounds = bounds
        self._load = load
        self._counted = load.encoder()
        self._waiting: dict[int, Ticket] = {}
        self._given: Mapping[str, float] = {}
        self.given_pictures = 0
        self.waited_seconds = 0.0
        """How long those waited that were given to a worker."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(tuple(self._waiting.values()))

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket.number in self._waiting

    def of(self, tenant: str) -> int:
        """Return how many wait of one tenant."""
        return sum(ticket.purpose.tenant == tenant for ticket in self._waiting.values())

    def add(self, ticket: Ticket) -> None:
        """Put it last."""
        self._waiting[ticket.number] = ticket
        self._counted.submitted(ticket.number)

    def add_first(self, tickets: Iterable[Ticket]) -> None:
        """Put them before all others."""
        front = {ticket.number: ticket for ticket in tickets}
        self._waiting = front | self._waiting
        for number in front:
            self._counted.submitted(number)

    def remove(self, ticket: Ticket) -> bool:
        """Take it out; tell whether it was there."""
        self._counted.ended(ticket.number)
        return self._waiting.pop(ticket.number, None) is not None

    def close(self) -> None:
        """Nothing waits here any more."""
        self._load.forget(self._counted)

    def next(self, owners: Collection[int], *, not_for: int | None = None) -> list[Ticket]:
        """Take out the next batch of those that belong to ``owners``, leaving what failed at ``not_for`` already; empty when there is
        none."""
        tickets = list(self._waiting.values())
        open_ = [ticket.owner in owners and not_for not in ticket.failed_at for ticket in tickets]
        if not any(open_):
            return []
        sizes: Counter[tuple[str, str]] = Counter()
        for ticket in tickets:
            sizes[_request(ticket)] += ticket.tokens
        # All that wait, whoever's: what a tenant was given elsewhere counts here too.
        views = [_view(ticket, sizes, open_=one) for ticket, one in zip(tickets, open_, strict=True)]
        choice = choose(views, self._given, self._bounds)
        self._given = choice.given
        if choice.passed_over is not None:
            tickets[choice.passed_over].passed_over += 1
        batch = [tickets[index] for index in choice.indices]
        self.given_pictures += len(batch)
        for ticket in batch:
            self.waited_seconds += now() - ticket.submitted_at
            self.remove(ticket)
        return batch


def _request(ticket: Ticket) -> tuple[str, str]:
    # One that belongs to no request is a request of its own.
    return ticket.purpose.tenant, ticket.purpose.request or str(ticket.number)


def _view(ticket: Ticket, sizes: Counter[tuple[str, str]], *, open_: bool) -> WaitingPicture:
    tenant, size = ticket.purpose.tenant, sizes[_request(ticket)]
    return WaitingPicture(tenant, ticket.tokens, size, ticket.shape, ticket.passed_over, open_)
