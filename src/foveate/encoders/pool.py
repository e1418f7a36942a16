"""The gateway's side of the encode workers: one line of pictures before separate, killable processes that hold a vision tower each.

Pictures wait here and not at the workers, so that they can be put in order (:mod:`foveate.decisions.encode_order`), cancelled for free,
and given to another worker when theirs dies. Each belongs to a worker by its content (:mod:`foveate.decisions.ownership`); one that would
be idle takes others' too. What a worker held when it died is encoded by another; one that is stuck is killed first, because until it is
dead it may write to the slots. With no worker left the engine's process encodes, where it has a vision tower, until one is back; but not
at once what ran when a worker died: should it be the cause, the engine's death would cost every answer under way.

Does not cover: the processes themselves (:mod:`foveate.encoders.workers`), and equal pictures at once (the journey's flights).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EncodeFailed, EncodersUnavailable, EngineUnavailable, QueueFull
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot
from foveate.decisions.encode_order import BatchBounds
from foveate.decisions.ownership import owner
from foveate.encoders.line import Line
from foveate.encoders.messages import EncodeBegun, EncodeDone, EncodeRejected
from foveate.encoders.port import UNKNOWN, Encoder, Purpose
from foveate.encoders.seat import EncoderReport, EncoderTotals, Seat
from foveate.encoders.ticket import Ticket
from foveate.encoders.workers import CheckRoom, PoolConfig, Workers
from foveate.observe.load import Load
from foveate.runtime.port import Runtime
from foveate.runtime.settled import settled

logger = logging.getLogger(__name__)

_DEATHS_MAX = 3
"""Workers that may die while they encode a picture before it is given up. Deaths by another cause hit a picture as well, so one is no
proof."""
_LOCAL_DEATHS_MAX = 1
"""With more the engine's process is never given it; with this many only when no worker has come back in ``down_seconds_max``."""
_NO_BOUND = 2**62


class EncoderPool:
    """Implements :class:`foveate.encoders.port.Encoder`, and :class:`foveate.encoders.workers.Watcher`. Owned by the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        config: PoolConfig,
        *,
        local: Encoder | None = None,
        load: Load | None = None,
        check_room: CheckRoom | None = None,
    ) -> None:
        """``local`` is an encoder in the engine's process, which steps in while no worker can be asked; ``load`` is told what waits and
        runs; ``check_room`` is asked before there are more workers than at the start."""
        self._config = config
        self._local = local
        self._steps_in = True
        load = load or Load()
        self._workers = Workers(runtime, config, self, load, check_room=check_room)
        self._line = Line(BatchBounds(config.config.batch_max, config.config.batch_tokens_max or _NO_BOUND), load)
        self._numbers = itertools.count(1)
        self._give_up: asyncio.TimerHandle | None = None
        self.local_pictures = 0
        """Pictures that the engine's process encoded because no worker could."""

    # ------------------------------------------------------------------------------------------------------ life cycle

    @property
    def alive(self) -> int:
        """Workers that can be given pictures."""
        return sum(seat.open for seat in self._workers.seats)

    @property
    def waiting(self) -> int:
        """Pictures in the line."""
        return len(self._line)

    def report(self) -> tuple[EncoderReport, ...]:
        """Tell about every worker."""
        waiting = [ticket.owner for ticket in self._line]
        return tuple(seat.report(waiting.count(seat.index)) for seat in self._workers.seats)

    async def start(self) -> None:
        """Start every worker and wait until all are ready. Raises StartupError, with none left running."""
        await self._workers.start()

    def expect(self, encoder_version: str) -> int:
        """Have only encoders of this version from now on; return how many workers had another one. Those are replaced."""
        return self._workers.expect(encoder_version)

    def totals(self) -> EncoderTotals:
        """Tell what was done since the start, to compare two moments."""
        oldest = next(iter(self._line), None)
        return EncoderTotals(
            given=self._line.given_pictures,
            waited_seconds=self._line.waited_seconds,
            oldest_seconds=0.0 if oldest is None else now() - oldest.submitted_at,
            busy_seconds=self._workers.past.busy_seconds + sum(seat.busy_seconds for seat in self._workers.seats),
        )

    @property
    def wanted(self) -> int:
        """How many workers there are to be."""
        return self._workers.wanted

    @property
    def encodes_locally(self) -> bool:
        """Whether the engine's process can encode where no worker does."""
        return self._local is not None and self._steps_in

    def step_in(self, allowed: bool) -> None:
        """Say whether it may, from now on: an engine's processes may come to have a vision tower, or not to have it any more."""
        self._steps_in = allowed

    async def resize(self, workers: int, *, drain_seconds_max: float) -> None:
        """Have so many workers from now on; with none the engine's process encodes. No picture fails by it.

        Raises StartupError when new ones cannot start, ValueError for none where the engine's process cannot encode.
        """
        if not workers and not self.encodes_locally:
            raise ValueError("with no encode worker nobody would encode")
        await self._workers.resize(workers, drain_seconds_max=drain_seconds_max)

    @property
    def restarts(self) -> int:
        """Workers that died and were replaced, or are about to be."""
        return self._workers.past.restarts + sum(seat.restarts for seat in self._workers.seats)

    async def stop(self, *, seconds_max: float) -> None:
        """End all workers; what waits or is held fails."""
        self._workers.stopped = True
        self._cancel_give_up()
        for ticket in self._line:
            self._line.remove(ticket)
            ticket.settle(EncodersUnavailable(detail="the encode workers were stopped"))
        await self._workers.stop(seconds_max=seconds_max)
        self._line.close()

    # ---------------------------------------------------------------------------------------------------------- encode

    async def encode(
        self, prepared: PreparedImage, out: Slot, *, deadline: float, purpose: Purpose = UNKNOWN
    ) -> EncodedImage:
        """See the port."""
        ticket = Ticket(next(self._numbers), prepared, out, deadline, purpose)
        if self._workers.seats:
            self._admit(ticket)
        else:
            ticket.settle(None)
        try:
            in_time = await ticket.settled_by(deadline)
        except asyncio.CancelledError:
            await self._let_go(ticket)
            raise
        if not in_time:
            await self._let_go(ticket)
            raise DeadlineExceeded(detail="the deadline passed while a picture was encoded")
        return ticket.outcome.result() or await self._encode_locally(ticket)

    async def _encode_locally(self, ticket: Ticket) -> EncodedImage:
        if self._local is None or self._workers.stopped:
            raise EncodersUnavailable(retry_after_seconds=1.0)
        try:
            image = await self._local.encode(
                ticket.prepared, ticket.out, deadline=ticket.deadline, purpose=ticket.purpose
            )
        except EngineUnavailable as error:
            if not ticket.deaths:
                raise
            # Told so, it is not tried again as if nothing had ended of it.
            raise EncodersUnavailable(
                detail=f"{ticket.deaths} encode workers ended, and the engine's process is gone too",
                retry_after_seconds=1.0,
            ) from error
        self.local_pictures += bool(self._workers.wanted)
        self._blame(ticket)
        return image

    def _admit(self, ticket: Ticket) -> None:
        """Put a picture into the line, or raise why not."""
        if self._workers.stopped:
            raise EncodersUnavailable(detail="the encode workers were stopped")
        whole = self._config.queue_max
        # As in the media workers' queue, a quarter is out of any one tenant's reach.
        for limit, waiting in (
            (whole - whole // 4, self._line.of(ticket.purpose.tenant)),
            (whole, len(self._line)),
        ):
            if waiting >= limit:
                raise QueueFull(
                    "Too many pictures wait for the vision encoder. Try again shortly.",
                    limit_name="engine.encoder_queue_max",
                    limit=limit,
                    actual=waiting + 1,
                    retry_after_seconds=1.0,
                )
        self._line.add(ticket)
        self._place([ticket])
        self._dispatch()

    async def _let_go(self, ticket: Ticket) -> None:
        """Wait until no worker touches an unwanted picture's slots: at once when it has not started."""
        ticket.abandoned = True
        if self._line.remove(ticket):
            return
        for seat in self._workers.seats:
            if ticket in seat.held:
                seat.cancel(ticket)
        await settled(ticket.outcome)

    # -------------------------------------------------------------------------------------------------- who gets what

    def _place(self, tickets: Sequence[Ticket]) -> None:
        """Give each of these, which are in the line, an owner; with no worker there, the engine or nobody."""
        loads: dict[int, float] = {seat.index: seat.held_tokens for seat in self._workers.seats if seat.open}
        for ticket in self._line:
            if ticket.owner in loads and ticket not in tickets:
                loads[ticket.owner] += ticket.tokens
        for ticket in tickets:
            able = {index: load for index, load in loads.items() if index not in ticket.failed_at}
            if not able and self.encodes_locally and not (ticket.deaths and self._workers.wanted):
                self._line.remove(ticket)
                ticket.settle(None)
            elif loads:
                ticket.owner = owner(ticket.purpose.content, able or loads, ticket.tokens)
                loads[ticket.owner] += ticket.tokens
            else:
                ticket.owner = None
                self._wait_for_one()

    def _dispatch(self) -> None:
        """Give every worker with room its own pictures; then those that would be idle others'."""
        seats = self._workers.seats
        for seat in sorted(seats, key=lambda seat: seat.held_tokens):
            while seat.room and (batch := self._line.next((seat.index,))):
                seat.give(batch)
        for seat in seats:
            if seat.room and seat.idle.is_set():
                others = [other.index for other in seats if other is not seat]
                if batch := self._line.next(others, not_for=seat.index):
                    seat.give(batch)
                else:
                    self._recall(seat)

    def _recall(self, idle: Seat) -> None:
        """Ask the worker with the most before it for what it has not begun. A worker that did so in the meantime answers as ever."""
        busy = max(self._workers.seats, key=lambda seat: seat.held_tokens if seat.behind else -1)
        for ticket in busy.behind:
            if idle.index not in ticket.failed_at:
                ticket.recalled = True
                busy.cancel(ticket)

    def _back_to_line(self, tickets: Sequence[Ticket]) -> None:
        """Pictures that a worker was given are to be given to another."""
        for ticket in tickets:
            ticket.recalled = False
        self._line.add_first(tickets)
        self._place(tickets)

    def _move_from(self, seat: Seat) -> None:
        """Give what waits for this worker to others."""
        self._place([ticket for ticket in self._line if ticket.owner == seat.index])
        self._dispatch()

    def _wait_for_one(self) -> None:
        if self._give_up is None:
            loop = asyncio.get_running_loop()
            self._give_up = loop.call_later(self._config.down_seconds_max, self._nobody_came)

    def _nobody_came(self) -> None:
        self._give_up = None
        for ticket in self._line:
            if ticket.owner is None:
                self._line.remove(ticket)
                local = self.encodes_locally and ticket.deaths <= _LOCAL_DEATHS_MAX
                ticket.settle(None if local else EncodersUnavailable(retry_after_seconds=1.0))

    def _cancel_give_up(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    # ---------------------------------------------------------------------------------------------------------- workers

    def came(self, seat: Seat) -> None:
        """See the watcher."""
        self._cancel_give_up()
        self._place([ticket for ticket in self._line if ticket.owner is None])
        self._dispatch()

    def closed(self, seat: Seat) -> None:
        """See the watcher."""
        self._move_from(seat)

    def gone(self, seat: Seat, held: list[list[Ticket]]) -> None:
        """See the watcher."""
        back: list[Ticket] = []
        for place, batch in enumerate(held):
            for ticket in batch:
                ticket.deaths += place == 0  # only the batch that ran can have brought it about
                if self._workers.stopped or ticket.abandoned:
                    ticket.settle(EncodersUnavailable(detail="the encode worker ended"))
                elif ticket.deaths >= _DEATHS_MAX:
                    ticket.settle(EncodeFailed(detail=f"{ticket.deaths} encode workers died of it"))
                else:
                    back.append(ticket)
        if self._workers.stopped:
            return
        if not seat.draining:
            logger.error("encode worker %d ended; another is started, %d pictures are moved", seat.index, len(back))
        self._back_to_line(back)
        self._move_from(seat)

    def said(self, seat: Seat, message: Any) -> None:
        """See the watcher."""
        if isinstance(message, EncodeBegun):
            seat.began(message.job_ids)
            return
        ticket = seat.take_back(message.job_id)
        if ticket is None:
            self._workers.condemn(seat, f"it answered picture {message.job_id}, which it does not hold")
            return
        if isinstance(message, EncodeDone):
            seat.did(message.image)
            ticket.settle(message.image)
            # Whoever waits for the picture goes on before anything else is thought of: the worker has another batch meanwhile.
            asyncio.get_running_loop().call_soon(self._done, seat, ticket)
            return
        seat.load.ended(ticket.number)
        if message.error is None and ticket.recalled and not ticket.abandoned:
            self._back_to_line([ticket])
            idle = next((one for one in self._workers.seats if one.room and one.idle.is_set()), None)
            if idle is not None:
                ticket.owner = idle.index  # not by its content: its own worker is the one that has no time
        else:
            self._rejected(seat, ticket, message)
        self._dispatch()

    def _done(self, seat: Seat, ticket: Ticket) -> None:
        seat.load.ended(ticket.number)
        self._blame(ticket)
        self._dispatch()

    def _rejected(self, seat: Seat, ticket: Ticket, message: EncodeRejected) -> None:
        error = asyncio.CancelledError() if message.error is None else message.error.error()
        others = self.encodes_locally or any(other.open for other in self._workers.seats if other is not seat)
        if isinstance(error, EncodeFailed) and not (ticket.abandoned or ticket.failed_at) and others:
            # The picture's doing or the worker's? Another one's word decides.
            ticket.failed_at.add(seat.index)
            self._back_to_line([ticket])
        else:
            ticket.settle(error)

    def _blame(self, ticket: Ticket) -> None:
        """A picture was encoded after all: whoever could not is at fault, and replaced when that happens again and again."""
        for seat in self._workers.seats:
            if seat.index in ticket.failed_at and seat.live and seat.blame():
                self._workers.condemn(seat, "it failed pictures that others could encode")
