"""A media job with the one who waits for it, and the promise that its end is told exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from foveate.core.clock import now
from foveate.core.errors import FoveateError
from foveate.media.messages import MediaJob, MediaReply


class Ticket:
    """A job with the one who waits for it; ``whom`` is the tenant it is done for."""

    def __init__(self, number: int, job: MediaJob, on_done: Callable[[], None], *, whom: str) -> None:
        self.job: MediaJob = msgspec.structs.replace(job, job_id=number)
        self.number = number
        self.whom = whom
        self.attempts = 0
        self.queued_at = now()
        """When it began to wait for a worker, in monotonic seconds."""
        self.began_at = 0.0
        """When a worker was given it last, in monotonic seconds."""
        self.reply: asyncio.Future[MediaReply] = asyncio.get_running_loop().create_future()
        self._on_done = on_done

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits any more."""
        return self.reply.done()

    def answer(self, reply: MediaReply) -> None:
        """End it with a worker's reply. It ends once: a second ending is a bug and raises."""
        self.end()
        if not self.reply.done():
            self.reply.set_result(reply)

    def fail(self, error: FoveateError) -> None:
        """End it with an error."""
        self.end()
        if not self.reply.done():
            self.reply.set_exception(error)

    def end(self) -> None:
        """Tell that no worker touches the job's slots, now or later."""
        on_done, self._on_done = self._on_done, _ended_twice
        on_done()


def _ended_twice() -> None:
    raise RuntimeError("a media job ended twice")
