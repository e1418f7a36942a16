"""The media jobs that wait, served by tenants in turn: one who sends many keeps only itself waiting. Pure; owned by the event loop."""

from __future__ import annotations

from collections import OrderedDict

from foveate.media.ticket import Ticket


class Turns:
    """Tickets by whom they are for. The next is the oldest of the tenant whose turn it is; a tenant's turn then comes last."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, OrderedDict[int, Ticket]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket.number in self._waiting.get(ticket.whom, ())

    def waiting(self, whom: str) -> int:
        """Return how many wait of one tenant."""
        return len(self._waiting.get(whom, ()))

    def add(self, ticket: Ticket) -> None:
        """Put it behind its tenant's others."""
        self._waiting.setdefault(ticket.whom, OrderedDict())[ticket.number] = ticket
        self._size += 1

    def add_first(self, ticket: Ticket) -> None:
        """Put it before all others: it had its turn, and lost it through no fault of its own."""
        self.add(ticket)
        self._waiting[ticket.whom].move_to_end(ticket.number, last=False)
        self._waiting.move_to_end(ticket.whom, last=False)

    def next(self) -> Ticket:
        """Take the next one out. Raises KeyError when none waits."""
        whom, tickets = self._waiting.popitem(last=False)
        _, ticket = tickets.popitem(last=False)
        self._size -= 1
        if tickets:
            self._waiting[whom] = tickets
        return ticket

    def remove(self, ticket: Ticket) -> bool:
        """Take this one out; tell whether it was there."""
        tickets = self._waiting.get(ticket.whom)
        if tickets is None or tickets.pop(ticket.number, None) is None:
            return False
        self._size -= 1
        if not tickets:
            del self._waiting[ticket.whom]
        return True
