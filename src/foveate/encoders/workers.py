"""The encode workers' processes: started, watched, replaced when they die or are stuck, and more or fewer of them on demand.

Does not cover: what a worker is given and what becomes of it when the worker ends (:mod:`foveate.encoders.pool`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from foveate.core.errors import FoveateError, StartupError
from foveate.encoders.messages import EncoderConfig, EncoderInfo, WorkerReceives, WorkerSends
from foveate.encoders.seat import Past, Seat
from foveate.encoders.ticket import Ticket
from foveate.observe.load import Load
from foveate.runtime.port import Progress, Runtime, Worker, WorkerSpec
from foveate.runtime.pulse import TICK_SECONDS, Pong, Pulse
from foveate.runtime.restart_pause import restart_pause

logger = logging.getLogger(__name__)

_STOP_SECONDS = 2.0


CheckRoom = Callable[[int], None]
"""Raises StartupError where there is no memory for so many workers more. Reads files: not for the event loop."""


class PoolConfig(msgspec.Struct, frozen=True):
    """What the pool may use. Workers are named from ``first_index`` on; the one at place i runs on the cores ``cpus[i % len]`` (none: any).

    A worker that answers nothing for ``hang_seconds``, or has one batch for ``batch_seconds_max``, is killed. A picture that no worker is
    there for, nor the engine, waits ``down_seconds_max``.
    """

    workers: int
    config: EncoderConfig
    first_index: int = 0
    queue_max: int = 256
    threads: int = 1
    cpus: tuple[tuple[int, ...], ...] = ()
    hang_seconds: float = 1.5
    batch_seconds_max: float = 60.0
    start_seconds_max: float = 600.0
    down_seconds_max: float = 4.0
    entry: str = "foveate.encoders.process:main"


class Watcher(Protocol):
    """Who is told what becomes of workers."""

    def came(self, seat: Seat) -> None:
        """A worker is ready to be given pictures."""
        ...

    def said(self, seat: Seat, message: Any) -> None:
        """A worker sent a message about a picture."""
        ...

    def closed(self, seat: Seat) -> None:
        """A worker is to be given nothing more. It still holds what it held."""
        ...

    def gone(self, seat: Seat, held: list[list[Ticket]]) -> None:
        """A worker has ended and touches nothing any more; it held these batches, the one that ran first."""
        ...


class Workers:
    """The seats and what keeps them taken. Owned by the event loop."""

    def __init__(
        self, runtime: Runtime, config: PoolConfig, told: Watcher, load: Load, *, check_room: CheckRoom | None = None
    ) -> None:
        self.stopped = False
        self.past = Past()
        self._resizing = asyncio.Lock()
        self._starting: set[Worker] = set()
        self._runtime = runtime
        self._config = config
        self._told = told
        self._load = load
        self._check_room = check_room
        self._version = ""
        self._watch_task: asyncio.Task[None] | None = None
        self.seats = [self._seat(config.first_index + place) for place in range(config.workers)]

    async def start(self) -> None:
        """Start every worker and wait until all are ready. Raises StartupError, with none left running."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for seat in self.seats:
                    tasks.create_task(self._start(seat))
        except BaseExceptionGroup as group:
            await self.stop(seconds_max=0)
            raise group.exceptions[0] from None
        except BaseException:
            await self.stop(seconds_max=0)
            raise
        for seat in self.seats:
            self._keep(seat)
        self._watch_task = asyncio.create_task(self._watch(), name="foveate: watches encoders")

    async def stop(self, *, seconds_max: float) -> None:
        """End all workers; each is asked to and has ``seconds_max``, but those that are still starting."""
        self.stopped = True
        tasks = [task for task in (self._watch_task, *(seat.keeper for seat in self.seats)) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        workers = [seat.worker for seat in self.seats if seat.worker is not None]
        # Whoever starts these, in a resize, is told that they could not.
        starting = [worker.stop(seconds_max=0) for worker in self._starting]
        await asyncio.gather(*(worker.stop(seconds_max=seconds_max) for worker in workers), *starting)
        for seat in self.seats:
            self._load.forget(seat.load)

    @property
    def wanted(self) -> int:
        """How many workers there are to be."""
        return sum(not seat.draining for seat in self.seats)

    async def resize(self, workers: int, *, drain_seconds_max: float) -> None:
        """Have so many workers. New ones are ready when this returns; from those that go, what waits is moved at once, what they run is
        finished within ``drain_seconds_max``, else moved too. Once stopped there are none, whatever is asked for. Raises StartupError when
        new ones cannot start; then all is as before.
        """
        async with self._resizing:
            more = 0 if self.stopped else workers - self.wanted
            if more > 0:
                await self._add(more)
            elif more < 0:
                going = sorted(self.seats, key=lambda seat: seat.index)[more:]
                await asyncio.gather(*(self._drain(seat, drain_seconds_max) for seat in going))

    async def _add(self, count: int) -> None:
        if self._check_room is not None:
            await asyncio.to_thread(self._check_room, count)
        taken = {seat.index for seat in self.seats}
        free = (index for index in itertools.count(self._config.first_index) if index not in taken)
        added = [self._seat(index) for index in itertools.islice(free, count)]
        self.seats += added
        ready = False
        try:
            async with asyncio.TaskGroup() as tasks:
                for seat in added:
                    tasks.create_task(self._start(seat))
            ready = True
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            if ready:
                for seat in added:
                    self._keep(seat)
            else:
                await asyncio.gather(*(self._drain(seat, 0.0) for seat in added))

    def _seat(self, index: int) -> Seat:
        return Seat(index, self._load.encoder(), Pulse(self._config.hang_seconds))

    async def _drain(self, seat: Seat, seconds_max: float) -> None:
        seat.draining = True
        self._told.closed(seat)
        try:
            async with asyncio.timeout(seconds_max):
                await seat.idle.wait()
        except TimeoutError:
            logger.warning("encode worker %d has not finished within %g s and is ended", seat.index, seconds_max)
            seat.condemn()
        if seat.keeper is not None:
            seat.keeper.cancel()
            await asyncio.gather(seat.keeper, return_exceptions=True)
        if seat.worker is not None:
            await seat.worker.stop(seconds_max=_STOP_SECONDS)
        self.seats.remove(seat)
        self._load.forget(seat.load)
        self.past.note(seat)

    def expect(self, encoder_version: str) -> int:
        """Have only encoders of this version from now on; return how many workers had another one. Those are replaced."""
        self._version = encoder_version
        wrong = [seat for seat in self.seats if seat.live and seat.version != encoder_version]
        for seat in wrong:
            self.condemn(seat, "it has loaded another vision encoder than the engine")
        return len(wrong)

    def condemn(self, seat: Seat, why: str) -> None:
        """Kill a worker, to be replaced."""
        logger.warning("encode worker %d is killed: %s", seat.index, why)
        seat.condemn()
        self._told.closed(seat)

    async def _start(self, seat: Seat) -> None:
        config, place = self._config, seat.index - self._config.first_index
        worker = self._runtime.worker(
            WorkerSpec(
                role="encoder",
                index=seat.index,
                entry=config.entry,
                config=msgspec.to_builtins(config.config),
                receives=WorkerReceives,
                sends=WorkerSends,
                threads=config.threads,
                cpus=config.cpus[place % len(config.cpus)] if config.cpus else (),
            )
        )
        self._starting.add(worker)
        try:
            ready = await worker.start(
                on_message=lambda message: self._received(seat, worker, message),
                on_exit=lambda: self._exited(seat, worker),
                seconds_max=config.start_seconds_max,
            )
        finally:
            self._starting.discard(worker)
        info = msgspec.convert(ready.info, EncoderInfo)
        if self.stopped:  # in the instant in which it became ready
            await worker.stop(seconds_max=0)
            raise StartupError("The encode workers have been stopped.")
        if self._version and info.encoder_version != self._version:
            await worker.stop(seconds_max=0)
            raise StartupError(f"The process '{worker.spec.title}' has loaded another vision encoder than the engine.")
        if not worker.alive:
            raise StartupError(f"The process '{worker.spec.title}' ended as soon as it was ready.")
        seat.taken(worker, info.encoder_version)
        self._told.came(seat)

    def _keep(self, seat: Seat) -> None:
        seat.keeper = asyncio.create_task(self._replace(seat), name=f"foveate: keeps encoder {seat.index}")

    async def _replace(self, seat: Seat) -> None:
        """Replace the seat's worker whenever it dies, with a pause that grows while none of them gets a picture done."""
        while True:
            if seat.worker is not None:
                await seat.vacant.wait()
            await asyncio.sleep(restart_pause(seat.deaths))
            try:
                await self._start(seat)
                logger.warning("encode worker %d is back", seat.index)
            except (FoveateError, OSError) as error:
                # Also what the system refuses (no descriptor, no memory, no process): it may have room again later.
                seat.deaths += 1
                logger.error("encode worker %d did not start again: %s", seat.index, error)

    async def _watch(self) -> None:
        """Kill workers that are stuck."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for seat in self.seats:
                if seat.worker is None or seat.condemned:
                    continue
                if seat.running_seconds > self._config.batch_seconds_max:
                    self.condemn(seat, f"it has had one batch for {seat.running_seconds:.1f} s")
                elif not seat.pulse.ask(seat.worker):
                    self.condemn(seat, f"it has answered nothing for {seat.pulse.silent_seconds:g} s")

    def _received(self, seat: Seat, worker: Worker, message: Any) -> None:
        if isinstance(message, Progress):
            logger.debug("encode worker %d: %s", seat.index, message.text)
        elif seat.worker is worker:
            seat.pulse.answered()
            if not isinstance(message, Pong):
                self._told.said(seat, message)

    def _exited(self, seat: Seat, worker: Worker) -> None:
        if seat.worker is worker:  # else it ended as soon as it was ready, and was never given the seat
            self._told.gone(seat, seat.left())
