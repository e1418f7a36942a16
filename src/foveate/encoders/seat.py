"""A place for one encode worker and its successors: what it holds, and whether it is well."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Literal

import msgspec

from foveate.core.clock import now
from foveate.core.media import EncodedImage
from foveate.decisions.health import Health, answered, failed, looked_well, share
from foveate.encoders.messages import CancelEncode, EncodeBatch
from foveate.encoders.ticket import Ticket
from foveate.observe.load import EncoderLoad
from foveate.runtime.port import Worker
from foveate.runtime.pulse import Pulse

FAILURES_MAX = 3
"""Pictures in a row that a worker failed and another then encoded, before it is replaced."""
RECOVER_SECONDS = 5.0
"""How long a worker that came back from a failure is given one batch at a time."""
WINDOW_BATCHES = 2
"""Batches a worker holds: one that runs and the next, so that it never waits for the gateway. Whatever else waits can still be reordered,
moved and cancelled for free."""

State = Literal["up", "recovering", "down", "draining"]


class EncoderReport(msgspec.Struct, frozen=True):
    """One encode worker. ``waiting`` pictures are its own but not given to it yet, ``held`` are; ``batches``, ``pictures`` and
    ``busy_seconds`` are what it and its predecessors did, ``restarts`` how many of those there were.
    """

    worker: int
    state: State
    waiting: int
    held: int
    batches: int
    pictures: int
    busy_seconds: float
    restarts: int


class EncoderTotals(msgspec.Struct, frozen=True):
    """Sums since the start: pictures given to workers and how long those had waited, and how long workers encoded.

    ``oldest_seconds`` is how long the first in the line waits now.
    """

    given: int
    waited_seconds: float
    oldest_seconds: float
    busy_seconds: float


class Past:
    """What workers did whose places are no more."""

    def __init__(self) -> None:
        self.restarts = 0
        self.busy_seconds = 0.0

    def note(self, seat: Seat) -> None:
        """A place is given up; the end of its last worker was wanted."""
        self.restarts += seat.restarts
        self.busy_seconds += seat.busy_seconds


class Seat:
    """One worker at a time. Decides nothing about pictures: :class:`foveate.encoders.pool.EncoderPool` does."""

    def __init__(self, index: int, load: EncoderLoad, pulse: Pulse) -> None:
        self.index = index
        self.load = load
        self.worker: Worker | None = None
        self.version = ""
        self.health = Health()
        self.draining = False
        self.condemned = False
        self.pulse = pulse
        self.began_at = 0.0
        """When it was given, or got to, the batch that runs."""
        self.deaths = 0
        """Deaths in a row without a picture done between them."""
        self.restarts = 0
        self.batches = 0
        self.pictures_done = 0
        self.busy_seconds = 0.0
        self.vacant = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.keeper: asyncio.Task[None] | None = None
        self._batches: deque[list[Ticket]] = deque()

    # ------------------------------------------------------------------------------------------------------ its worker

    @property
    def live(self) -> bool:
        """Whether it has a worker that answers and is not about to end."""
        return self.worker is not None and not self.condemned and self.health.up

    @property
    def open(self) -> bool:
        """Whether it may be given pictures at all."""
        return self.live and not self.draining

    @property
    def state(self) -> State:
        """What an operator is told."""
        if not self.live:
            return "down"
        if self.draining:
            return "draining"
        return "up" if share(self.health, now(), RECOVER_SECONDS) == 1.0 else "recovering"

    def taken(self, worker: Worker, version: str) -> None:
        """A worker is ready."""
        self.worker, self.version = worker, version
        self.condemned = False
        self.pulse.answered()
        self.vacant.clear()
        self.health = looked_well(self.health, now())

    def left(self) -> list[list[Ticket]]:
        """The worker has ended: return what it held, the batch that ran first."""
        self.worker = None
        self.deaths += 1
        self.restarts += not self.draining
        self.health = failed(self.health, now(), failures_max=FAILURES_MAX, gone=True)
        held = list(self._batches)
        self._batches.clear()
        self.load.gone()
        self.idle.set()
        self.vacant.set()
        return held

    def condemn(self) -> None:
        """End the worker: nothing more is given to it, and what it holds comes back when it is dead."""
        self.condemned = True
        if self.worker is not None:
            self.worker.kill()

    def blame(self) -> bool:
        """Another worker encoded what this one could not. Tell whether that was once too often."""
        self.health = failed(self.health, now(), failures_max=FAILURES_MAX)
        return not self.health.up

    # ---------------------------------------------------------------------------------------------------- its pictures

    @property
    def room(self) -> bool:
        """Whether it may be given another batch now."""
        whole = share(self.health, now(), RECOVER_SECONDS) == 1.0
        return self.open and len(self._batches) < (WINDOW_BATCHES if whole else 1)

    @property
    def held(self) -> Iterator[Ticket]:
        """The pictures that it was given. Metrics may be read by another thread, so the batches are those of one moment."""
        return (ticket for batch in tuple(self._batches) for ticket in tuple(batch))

    @property
    def behind(self) -> list[Ticket]:
        """Those behind the batch that runs, which may still be had back, unless they were asked back already."""
        return [ticket for batch in islice(self._batches, 1, None) for ticket in batch if not ticket.recalled]

    @property
    def held_tokens(self) -> int:
        """Their visual tokens."""
        return sum(ticket.tokens for ticket in self.held)

    @property
    def running_seconds(self) -> float:
        """How long it has had the batch that runs."""
        return now() - self.began_at if self._batches else 0.0

    def give(self, batch: list[Ticket]) -> None:
        """Send pictures to be encoded together."""
        assert self.worker is not None
        if not self._batches:
            self.began_at = now()
        self._batches.append(list(batch))
        self.idle.clear()
        for ticket in batch:
            self.load.submitted(ticket.number)
        self.worker.send(EncodeBatch(tuple(ticket.message() for ticket in batch)))

    def cancel(self, ticket: Ticket) -> None:
        """Ask for a picture's slots back; the worker answers it all the same."""
        if self.worker is not None:
            self.worker.send(CancelEncode(ticket.number))

    def began(self, numbers: list[int]) -> None:
        """The worker began these, a batch. One that was had back before is none of its."""
        self.began_at = now()
        self.batches += 1
        self.load.began(numbers)

    def take_back(self, number: int) -> Ticket | None:
        """The worker is done with a picture: return it, ``None`` for one that it does not hold. Its load is told apart."""
        for batch in self._batches:
            for ticket in batch:
                if ticket.number == number:
                    batch.remove(ticket)
                    self._forget_empty()
                    return ticket
        return None

    def did(self, image: EncodedImage) -> None:
        """Note a picture that it encoded."""
        self.deaths = 0
        self.health = answered(self.health)
        self.pictures_done += 1
        self.busy_seconds += sum(span.cost_ms for span in image.spans if span.stage == "vision_encode") / 1e3

    def report(self, waiting: int) -> EncoderReport:
        """Tell about it; ``waiting`` pictures in the line are its own."""
        return EncoderReport(
            worker=self.index,
            state=self.state,
            waiting=waiting,
            held=sum(1 for _ in self.held),
            batches=self.batches,
            pictures=self.pictures_done,
            busy_seconds=self.busy_seconds,
            restarts=self.restarts,
        )

    def _forget_empty(self) -> None:
        if not self._batches[0]:
            self.began_at = now()  # until the worker says so itself
        self._batches = deque(batch for batch in self._batches if batch)
        if not self._batches:
            self.idle.set()
