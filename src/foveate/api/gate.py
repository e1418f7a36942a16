"""Knows every open exchange: bounds their number, and ends those that remain when the server stops.

A body that is still arriving, a text request and a request with media each count in a room of their own, so that neither slow bodies nor a
full house of pictures refuse a text. While API keys tell tenants apart, one of them may have half of each room.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, Protocol, get_args

from foveate.core.budget import ANYONE
from foveate.core.errors import FoveateError, QueueFull

LIMIT: Final = "limits.requests_max"
Kind = Literal["small", "large", "text", "media"]
"""``small``: its body is arriving and may yet be a text; ``large``: its body is arriving and is large enough for inline media."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_WORDS: Final[dict[Kind, str]] = {
    "small": "requests whose body is still arriving",
    "large": "requests whose large body is still arriving",
    "text": "requests without media",
    "media": "requests with media",
}


class Abortable(Protocol):
    """Something open that can be ended."""

    def abort(self, error: FoveateError) -> None:
        """End it with this error."""
        ...


class Place:
    """An exchange's place in one of the gate's rooms."""

    def __init__(self, gate: Gate, exchange: Abortable, tenant: str) -> None:
        self.exchange = exchange
        self.tenant = tenant
        self.room: _Room | None = None
        """Where it counts; None once it has left, or had to make room."""
        self._gate = gate

    def large(self) -> None:
        """Count as one whose body may hold media. Raises QueueFull."""
        self._gate.move(self, "large")

    def known(self, *, media: bool) -> None:
        """Count as what the body turned out to be. Raises QueueFull."""
        self._gate.move(self, "media" if media else "text")


class _Room:
    """The exchanges of one kind, by tenant, the oldest first."""

    def __init__(self, kind: Kind, places_max: int) -> None:
        self.kind = kind
        self._places_max = places_max
        self._tenant_max = max(1, places_max // 2)
        self._taken = 0
        self._tenants: dict[str, OrderedDict[Place, None]] = {}

    def add(self, place: Place) -> None:
        """Count one in. Raises QueueFull; a small body that is still arriving makes room instead, as it costs its client little."""
        own = len(self._tenants.get(place.tenant, ()))
        if place.tenant != ANYONE and own >= self._tenant_max:
            self._refuse(place.tenant, f"{own} {_WORDS[self.kind]} of this tenant are", self._tenant_max)
        elif self._taken >= self._places_max:
            busiest = max(self._tenants, key=lambda tenant: len(self._tenants[tenant]))
            self._refuse(busiest, f"{self._taken} {_WORDS[self.kind]} are", self._places_max)
        self._tenants.setdefault(place.tenant, OrderedDict())[place] = None
        self._taken += 1
        place.room = self

    def remove(self, place: Place) -> None:
        """Count one out."""
        own = self._tenants[place.tenant]
        del own[place]
        if not own:
            del self._tenants[place.tenant]
        self._taken -= 1
        if place.room is self:
            place.room = None

    def _refuse(self, tenant: str, what: str, limit: int) -> None:
        error = QueueFull(
            f"{what} under way; at most {limit} may be. Try again shortly.",
            limit_name=LIMIT,
            limit=limit,
            actual=limit + 1,
            retry_after_seconds=1.0,
        )
        if self.kind != "small":
            raise error
        oldest = next(iter(self._tenants[tenant]))
        self.remove(oldest)
        oldest.exchange.abort(error)


class Gate:
    """Admits at most ``open_max`` exchanges of each kind at a time. What a request costs is the journey's to bound; this bounds reading
    bodies, and what is kept of each request.
    """

    def __init__(self, *, open_max: int) -> None:
        self._rooms = {kind: _Room(kind, open_max) for kind in KINDS}
        self._open: set[Abortable] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed_by: FoveateError | None = None

    @property
    def open(self) -> int:
        """Exchanges that have begun and not ended."""
        return len(self._open)

    @contextmanager
    def enter(self, exchange: Abortable, tenant: str) -> Iterator[Place]:
        """Count an exchange as open, its body as arriving. Raises the error the gate was closed with.

        Where too many small bodies are on their way already, the oldest of the tenant that has most of them is ended with QueueFull: a
        text's body arrives at once, so that bodies that trickle never keep one out.
        """
        if self._closed_by is not None:
            raise self._closed_by
        place = Place(self, exchange, tenant)
        self._rooms["small"].add(place)
        self._open.add(exchange)
        self._empty.clear()
        try:
            yield place
        finally:
            if place.room is not None:
                place.room.remove(place)
            self._open.discard(exchange)
            if not self._open:
                self._empty.set()

    def move(self, place: Place, kind: Kind) -> None:
        """Count an exchange as another kind. Raises QueueFull. One that has just been ended to make room is left to end."""
        if place.room is None or place.room.kind == kind:
            return
        old = place.room
        self._rooms[kind].add(place)
        old.remove(place)

    def close(self, error: FoveateError) -> None:
        """End every open exchange, and refuse every later one, with ``error``."""
        self._closed_by = error
        for exchange in list(self._open):
            exchange.abort(error)

    async def emptied(self, *, seconds_max: float) -> bool:
        """Wait until no exchange is open; tell whether that happened in time."""
        try:
            async with asyncio.timeout(seconds_max):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
