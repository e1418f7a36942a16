"""One picture on its way through the encode workers."""

from __future__ import annotations

import asyncio

from foveate.core.clock import now
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot
from foveate.encoders.messages import Encode
from foveate.encoders.port import Purpose
from foveate.encoders.shape import picture_shape


class Ticket:
    """``outcome`` is set once, when no worker touches the slots any more; ``None``: no worker can take it.

    ``owner`` is the worker whose turn brings it about, ``deaths`` counts the workers that died of it, ``failed_at`` are the workers that
    said that it cannot be encoded, ``passed_over`` counts the batches that went before it although it is older. ``recalled``: it was asked
    back from its worker, for another that has nothing to do. ``abandoned``: nobody waits for it, only for its slots."""

    def __init__(self, number: int, prepared: PreparedImage, out: Slot, deadline: float, purpose: Purpose) -> None:
        self.number = number
        self.prepared = prepared
        self.out = out
        self.deadline = deadline
        self.purpose = purpose
        self.submitted_at = now()
        self.tokens = prepared.rows
        self.shape = picture_shape(prepared)
        self.owner: int | None = None
        self.deaths = 0
        self.failed_at: set[int] = set()
        self.passed_over = 0
        self.abandoned = False
        self.recalled = False
        loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[EncodedImage | None] = loop.create_future()
        self._woken: asyncio.Future[None] = loop.create_future()
        """Done when whoever asked is to go on."""

    async def settled_by(self, deadline: float) -> bool:
        """Wait until it is settled; false where the deadline comes first. Cancelling this leaves the outcome as it is. Call it once.

        With asyncio.wait an outcome would take the event loop one turn more to arrive.
        """
        timer = asyncio.get_running_loop().call_later(max(0.0, deadline - now()), self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()
        return self.outcome.done()

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    def message(self) -> Encode:
        """Return what a worker is told."""
        return Encode(self.number, self.prepared, self.out, self.deadline, self.submitted_at)

    def settle(self, outcome: EncodedImage | BaseException | None) -> None:
        """Say what became of it; a second word is not heard."""
        if self.outcome.done():
            return
        if isinstance(outcome, asyncio.CancelledError):
            self.outcome.cancel()
        elif isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)
        self._wake()
