"""The gateway's side of the media workers: a bounded queue before a few separate, killable processes.

A worker holds one job at a time, so whatever a hostile file does to its worker it does to its own request. A job that
outlives its time loses its worker; one whose worker died is tried once more, because the death may have had another
cause; a second death is the file's doing. Workers that died are replaced by themselves. Does not cover: what a job
does (:mod:`foveate.media.worker`), and the slots' ownership: ``on_done`` says when a worker no longer touches them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from foveate.core.clock import now
from foveate.core.errors import (
    DeadlineExceeded,
    FoveateError,
    MediaCostly,
    MediaWorkersUnavailable,
    QueueFull,
    StartupError,
)
from foveate.media.messages import MediaJob, MediaReply
from foveate.media.ticket import Ticket
from foveate.media.turns import Turns
from foveate.observe.load import Load
from foveate.runtime.port import Progress, Runtime, Worker, WorkerSpec
from foveate.runtime.restart_pause import restart_pause

logger = logging.getLogger(__name__)

_ATTEMPTS_MAX = 2
_LOOK_SECONDS = 0.25


class PoolConfig(msgspec.Struct, frozen=True):
    """What the pool may use. ``config`` is handed to every worker's entry point; workers are named from ``first_index`` on.

    A job that no worker is there for waits ``down_seconds_max`` for one to come back.
    """

    workers: int
    config: Any
    first_index: int = 0
    queue_depth_max: int = 512
    job_seconds_max: float = 10.0
    memory_bytes_max: int = 0
    start_seconds_max: float = 60.0
    down_seconds_max: float = 4.0
    threads: int = 1
    cpus: tuple[int, ...] = ()
    entry: str = "foveate.media.worker:main"


class _Seat:
    """A place for one worker and its successors."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.worker: Worker | None = None
        self.ticket: Ticket | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.overran = False
        self.failures = 0
        self.vacant = asyncio.Event()

    def free(self) -> Ticket | None:
        """Take the job away from it."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        ticket, self.ticket = self.ticket, None
        return ticket


class MediaPool:
    """Runs media jobs, tenants in turn. Owned by the event loop."""

    def __init__(self, runtime: Runtime, config: PoolConfig, load: Load | None = None) -> None:
        self.restarts = 0
        """Workers that died and were replaced or are about to be."""
        self.kills = 0
        """Workers killed because a job took too long or they broke the protocol."""
        self._load = load or Load()
        self._runtime = runtime
        self._config = config
        self._seats = [_Seat(config.first_index + number) for number in range(config.workers)]
        # The last to become idle works first: its memory is still warm, and the others' may be swapped or never
        # touched.
        self._idle: list[_Seat] = []
        self._queue = Turns()
        self._numbers = itertools.count(1)
        self._keepers: list[asyncio.Task[None]] = []
        self._stopped = False
        self._down_since: float | None = None

    @property
    def job_seconds_max(self) -> float:
        """How long a worker may take for one job before it is killed."""
        return self._config.job_seconds_max

    @property
    def ready(self) -> bool:
        """Whether any worker can take work, now or after what it holds."""
        return self.alive > 0

    @property
    def alive(self) -> int:
        """Workers that can take work."""
        return sum(1 for seat in self._seats if seat.worker is not None)

    @property
    def busy(self) -> int:
        """Workers that hold a job."""
        return sum(1 for seat in self._seats if seat.ticket is not None)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    async def start(self) -> None:
        """Start every worker and wait until all are ready. Raises StartupError, with none left running."""
        started = await asyncio.gather(*(self._start(seat) for seat in self._seats), return_exceptions=True)
        failed = next((outcome for outcome in started if outcome is not None), None)
        if failed is not None:
            await self.stop(seconds_max=0)
            raise failed
        self._keepers = [
            asyncio.create_task(self._keep(seat), name=f"foveate: keeps media {seat.index}") for seat in self._seats
        ]
        self._keepers.append(asyncio.create_task(self._watch(), name="foveate: watches media"))

    async def stop(self, *, seconds_max: float) -> None:
        """Let each worker finish what it holds within ``seconds_max``, fail what waits, end all workers."""
        self._stopped = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        while self._queue:
            self._queue.next().fail(MediaWorkersUnavailable())
        workers = [seat.worker for seat in self._seats if seat.worker is not None]
        await asyncio.gather(*(worker.stop(seconds_max=seconds_max) for worker in workers))

    async def run(self, job: MediaJob, *, whom: str, on_done: Callable[[], None], deadline: float) -> MediaReply:
        """Have a worker do ``job`` (whose ``job_id`` is set here) by ``deadline``, in monotonic seconds.

        ``whom`` is the tenant it is done for: tenants whose jobs wait are served in turn, each one's in order.

        ``on_done`` is called exactly once, when no worker touches the job's slots any more: before this returns or
        raises, except when it is cancelled or passes the deadline while a worker holds the job; then as soon as that
        worker has answered or died. Raises QueueFull, MediaCostly, DeadlineExceeded, and MediaWorkersUnavailable when
        no worker came up in time.
        """
        ticket = Ticket(next(self._numbers), job, on_done, whom=whom)
        refusal = self._refusal(whom)
        if refusal is not None:
            ticket.end()
            raise refusal
        self._queue.add(ticket)
        self._dispatch()
        try:
            while not ticket.reply.done():
                left = min(deadline - now(), self._config.down_seconds_max - self._down_seconds())
                if left <= 0 and ticket in self._queue and not self.ready:
                    raise MediaWorkersUnavailable(retry_after_seconds=1.0)
                if now() >= deadline:
                    raise DeadlineExceeded(detail="waiting for a media worker")
                await asyncio.wait((ticket.reply,), timeout=min(max(left, 0.0), _LOOK_SECONDS))
            return ticket.reply.result()
        finally:
            ticket.reply.cancel()  # does nothing to one that was answered; else says that nobody waits any more
            if self._queue.remove(ticket):
                ticket.end()

    def _down_seconds(self) -> float:
        """How long there has been no worker at all; 0 while there is one."""
        return 0.0 if self.ready or self._down_since is None else now() - self._down_since

    def _refusal(self, whom: str) -> FoveateError | None:
        if self._stopped:
            return MediaWorkersUnavailable()
        if self._idle:
            return None
        whole = self._config.queue_depth_max
        # A quarter of the queue is out of any one tenant's reach: full of its pictures alone, it would turn everybody else away.
        for limit, waiting in ((whole - whole // 4, self._queue.waiting(whom)), (whole, len(self._queue))):
            if waiting >= limit:
                return QueueFull(
                    detail="media queue",
                    limit=limit,
                    actual=waiting + 1,
                    limit_name="media.queue_depth_max",
                    retry_after_seconds=1.0,
                )
        return None

    def _dispatch(self) -> None:
        while self._idle and self._queue:
            ticket = self._queue.next()
            seat = self._idle.pop()
            assert seat.worker is not None
            ticket.attempts += 1
            ticket.began_at = now()
            self._load.media_waited(ticket.began_at - ticket.queued_at)
            seat.ticket = ticket
            seat.timer = asyncio.get_running_loop().call_later(self._config.job_seconds_max, self._overrun, seat)
            seat.worker.send(ticket.job)

    # ---------------------------------------------------------------------------------------------------------- workers

    async def _start(self, seat: _Seat) -> None:
        config = self._config
        worker = self._runtime.worker(
            WorkerSpec(
                role="media",
                index=seat.index,
                entry=config.entry,
                config=config.config,
                receives=MediaJob,
                sends=MediaReply,
                memory_bytes_max=config.memory_bytes_max,
                threads=config.threads,
                cpus=config.cpus,
            )
        )
        seat.vacant.clear()
        await worker.start(
            on_message=lambda message: self._received(seat, message),
            on_exit=lambda: self._exited(seat, worker),
            seconds_max=config.start_seconds_max,
        )
        if not worker.alive:
            raise StartupError(f"The process '{worker.spec.title}' ended as soon as it was ready.")
        seat.worker = worker
        seat.overran = False
        self._idle.append(seat)
        self._dispatch()

    async def _keep(self, seat: _Seat) -> None:
        """Replace the seat's worker whenever it dies, with a pause that grows while none of them gets a job done."""
        while True:
            if seat.worker is not None:
                await seat.vacant.wait()
                self.restarts += 1
            await asyncio.sleep(restart_pause(seat.failures))
            try:
                await self._start(seat)
            except (FoveateError, OSError) as error:
                # Also what the system refuses (no descriptor, no memory, no process): it may have room again later.
                seat.failures += 1
                logger.error("media worker %d did not start again: %s", seat.index, error)

    async def _watch(self) -> None:
        """Replace workers that the system holds, before their job's time runs out, which would be held against the job."""
        held: set[Worker] = set()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            workers = {seat.worker: seat for seat in self._seats if seat.worker is not None}
            # Twice in a row: who stops a process for a moment, to look at it, may.
            held_before, held = held, {worker for worker in workers if worker.suspended}
            for worker in held & held_before:
                logger.warning("media worker %d is killed: it is stopped", workers[worker].index)
                self._kill(workers[worker])

    def _received(self, seat: _Seat, message: Any) -> None:
        if isinstance(message, Progress):
            logger.debug("media worker %d: %s", seat.index, message.text)
            return
        if seat.ticket is None or seat.ticket.number != message.job_id:
            logger.error("media worker %d answered job %d, which it does not hold", seat.index, message.job_id)
            self._kill(seat)
            return
        ticket = seat.free()
        assert ticket is not None
        seat.failures = 0
        if not seat.overran:
            self._idle.append(seat)
        try:
            ticket.answer(message)
        finally:
            self._dispatch()

    def _overrun(self, seat: _Seat) -> None:
        seat.overran = True
        seconds = self._config.job_seconds_max
        logger.warning("media worker %d is killed: its job took longer than %g s", seat.index, seconds)
        self._kill(seat)

    def _kill(self, seat: _Seat) -> None:
        self.kills += 1
        if seat in self._idle:
            self._idle.remove(seat)
        if seat.worker is not None:
            seat.worker.kill()

    def _exited(self, seat: _Seat, worker: Worker) -> None:
        if seat.worker is not worker:
            return  # it ended as soon as it was ready, and was never given the seat
        seat.worker = None
        if not self.ready:
            self._down_since = now()
        seat.failures += 1
        if seat in self._idle:
            self._idle.remove(seat)
        seat.vacant.set()
        ticket = seat.free()
        if ticket is None:
            return
        if seat.overran:
            ticket.fail(_overran(self._config.job_seconds_max, now() - ticket.began_at))
        elif ticket.abandoned:
            ticket.end()
        elif self._stopped:
            ticket.fail(MediaWorkersUnavailable(detail="the pool stopped"))
        elif ticket.attempts >= _ATTEMPTS_MAX:
            ticket.fail(MediaCostly(detail=f"{ticket.attempts} workers died of it"))
        else:
            logger.warning("media worker %d died while it held job %d, which is tried again", seat.index, ticket.number)
            ticket.queued_at = now()
            self._queue.add_first(ticket)
            self._dispatch()


def _overran(limit: float, seconds: float) -> MediaCostly:
    return MediaCostly(
        detail=f"its worker was killed after {limit:g} s",
        limit=limit,
        actual=round(seconds, 3),
        limit_name="media.job_seconds_max",
    )
