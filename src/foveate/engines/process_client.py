"""The gateway's side of an engine in a process of ours: one worker seen as an :class:`Engine` and an :class:`Encoder`.

It restarts the process when it ends, with a capped back-off; meanwhile ``ready`` is false. What was open then ends at
once: generation with EngineDied, encoding with EngineUnavailable. Whether to try again is the journey's decision.

Nothing here grows without bound: a stream holds at most its request's own tokens, and the engine's process bounds how
many are open.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from foveate.core.clock import now
from foveate.core.errors import (
    DeadlineExceeded,
    EngineDied,
    EngineUnavailable,
    FoveateError,
    StartupError,
)
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot
from foveate.encoders.messages import CancelEncode, Encode, EncodeBegun, EncodeDone, EncodeRejected
from foveate.encoders.port import UNKNOWN, Purpose
from foveate.engines.arrivals import Arrivals
from foveate.engines.messages import Cancel, Cancelled, Generate, PictureReady, Receives, Sends
from foveate.engines.port import EngineEvent, EngineInfo, EngineWork, FailEvent, FinishEvent, Form, PictureInput
from foveate.observe.load import Load
from foveate.runtime.port import Progress, Ready, Runtime, Worker, WorkerSpec
from foveate.runtime.pulse import TICK_SECONDS, Pong, Pulse
from foveate.runtime.settled import settled

_LOG = logging.getLogger("foveate.engine")

_RESTART_SECONDS_MIN = 0.1
_RESTART_SECONDS_MAX = 10.0
_STEADY_SECONDS = 60.0
"""A process that was ready for this long has the shortest back-off again."""


class _Stream:
    """The events of one request on their way to its reader."""

    def __init__(self) -> None:
        self._events: deque[EngineEvent | Cancelled | FoveateError] = deque()
        self._arrived = asyncio.Event()

    def put(self, event: EngineEvent | Cancelled | FoveateError) -> None:
        self._events.append(event)
        self._arrived.set()

    async def get(self) -> EngineEvent | FoveateError:
        event = await self._next()
        assert not isinstance(event, Cancelled), "nobody cancels what is read"
        return event

    async def closed(self) -> None:
        """Wait until the request has ended or was dropped."""
        while True:
            event = await self._next()
            if isinstance(event, (Cancelled, FailEvent, FoveateError)) or (
                isinstance(event, FinishEvent) and event.last
            ):
                return

    async def _next(self) -> EngineEvent | Cancelled | FoveateError:
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()


class ProcessEngine:
    """One process of entry ``entry``, asked as :class:`foveate.engines.port.Engine` and :class:`foveate.encoders.port.Encoder` say.

    :class:`foveate.engines.fleet.Fleet` makes one or several of them an engine.
    """

    features: frozenset[str] = frozenset()
    accepts: frozenset[Form] = frozenset({"embeddings"})
    receives: Any = Receives
    """What messages the process takes, and"""
    sends: Any = Sends
    """which it sends: unions of msgspec structs."""

    def __init__(
        self,
        runtime: Runtime,
        entry: str,
        config: msgspec.Struct,
        *,
        threads: int,
        cpus: tuple[int, ...] = (),
        index: int = 0,
        needs: str = "",
        start_seconds_max: float,
        hang_seconds: float = 5.0,
        on_progress: Callable[[str], None] | None = None,
        on_restart: Callable[[], None] | None = None,
        load: Load | None = None,
    ) -> None:
        """``index`` is in the process's name, ``needs`` as in :class:`foveate.runtime.port.WorkerSpec`. A process that answers
        nothing for ``hang_seconds`` is killed and replaced.

        ``on_progress`` gets lines on what is loading; ``on_restart`` is called each time a restarted process is
        ready; ``load`` is told what waits and what runs."""
        self._runtime = runtime
        self._spec = WorkerSpec(
            "engine",
            index,
            entry,
            msgspec.to_builtins(config),
            receives=self.receives,
            sends=self.sends,
            threads=threads,
            cpus=cpus,
            needs=needs,
        )
        self._start_seconds_max = start_seconds_max
        self._pulse = Pulse(hang_seconds)
        self._watching: asyncio.Task[None] | None = None
        self._on_progress = on_progress
        self._on_restart = on_restart
        self._worker: Worker | None = None
        self._ready_since: float | None = None
        self._info: EngineInfo | None = None
        self._streams: dict[str, _Stream] = {}
        self._encoding: dict[int, asyncio.Future[EncodedImage]] = {}
        self._job_ids = itertools.count()
        self._load = load or Load()
        self._encoder_load = self._load.encoder()
        self._restarting: asyncio.Task[None] | None = None
        self._stopping = False
        self._back_off_seconds = _RESTART_SECONDS_MIN
        self.restarts = 0

    # ------------------------------------------------------------------------------------------------------ life cycle

    @property
    def ready(self) -> bool:
        """See the port."""
        return self._ready_since is not None

    @property
    def ready_since(self) -> float:
        """When the process now in use became ready (monotonic seconds); 0 when it is not."""
        return self._ready_since or 0.0

    @property
    def info(self) -> EngineInfo:
        """See the port. After a restart it may differ (the model's files may have changed)."""
        if self._info is None:
            raise EngineUnavailable(detail="the engine was never ready")
        return self._info

    @property
    def index(self) -> int:
        """The number in the process's name."""
        return self._spec.index

    @property
    def worker(self) -> Worker | None:
        """The process now in use or being started."""
        return self._worker

    async def start(self) -> None:
        """See the port."""
        worker = self._runtime.worker(self._spec)
        self._worker = worker
        ready: Ready = await worker.start(
            on_message=self._receive, on_exit=lambda: self._exited(worker), seconds_max=self._start_seconds_max
        )
        self._info = msgspec.convert(ready.info, EngineInfo)
        if worker.alive:
            self._ready_since = now()
            self._pulse.answered()
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="watch engine")

    async def stop(self, *, seconds_max: float) -> None:
        """See the port. Whatever is still open fails."""
        self._stopping = True
        self._ready_since = None
        tasks = [task for task in (self._restarting, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._worker is not None:
            await self._worker.stop(seconds_max=seconds_max)
        self._end_open("the engine was stopped")
        self._load.forget(self._encoder_load)

    def _exited(self, worker: Worker) -> None:
        if worker is not self._worker:
            return
        steady = self._ready_since is not None and now() - self._ready_since >= _STEADY_SECONDS
        self._ready_since = None
        self._end_open("the engine process ended")
        if self._stopping:
            return
        if steady:
            self._back_off_seconds = _RESTART_SECONDS_MIN
        _LOG.error("%s ended; restarting it in %.1f s", self._spec.title, self._back_off_seconds)
        if self._restarting is None or self._restarting.done():
            self._restarting = asyncio.get_running_loop().create_task(self._restart(), name="restart engine")

    async def _watch(self) -> None:
        """Kill the process when it hangs; what follows is what follows any death."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self.ready and self._worker is not None and not self._pulse.ask(self._worker):
                _LOG.error("%s has answered nothing for %g s: killed", self._spec.title, self._pulse.silent_seconds)
                self._worker.kill()

    async def _restart(self) -> None:
        while not self.ready:
            await asyncio.sleep(self._back_off_seconds)
            self._back_off_seconds = min(self._back_off_seconds * 2, _RESTART_SECONDS_MAX)
            self.restarts += 1
            try:
                await self.start()
            except StartupError as error:
                _LOG.error("%s did not restart: %s %s", self._spec.title, error.public, error.detail)
            except OSError as error:
                # What the system refuses now (no descriptor, no process) it may grant later.
                _LOG.error("%s did not restart: %s", self._spec.title, error)
        if self._on_restart is not None:
            self._on_restart()

    def _end_open(self, why: str) -> None:
        self._encoder_load.gone()
        for stream in self._streams.values():
            stream.put(EngineDied(detail=why))
        for future in self._encoding.values():
            if not future.done():
                future.set_exception(EngineUnavailable(detail=why))

    # -------------------------------------------------------------------------------------------------------- messages

    def _receive(self, message: Any) -> None:
        self._pulse.answered()
        match message:
            case Pong():
                pass
            case EncodeBegun():
                self._encoder_load.began(message.job_ids)
            case EncodeDone():
                self._encoder_load.ended(message.job_id)
                future = self._encoding.get(message.job_id)
                if future is not None and not future.done():
                    future.set_result(message.image)
            case EncodeRejected():
                self._encoder_load.ended(message.job_id)
                future = self._encoding.get(message.job_id)
                if future is not None and not future.done():
                    error = message.error
                    future.set_exception(error.error() if error else asyncio.CancelledError())
            case Progress():
                if self._on_progress is not None:
                    self._on_progress(message.text)
            case _:
                # A request that was cancelled a moment ago may still get an event.
                stream = self._streams.get(message.request_id)
                if stream is not None:
                    stream.put(message)

    def _usable_worker(self) -> Worker:
        if self._worker is None or not self.ready:
            raise EngineUnavailable(detail="the engine process is not ready")
        return self._worker

    # ---------------------------------------------------------------------------------------------------------- engine

    def generate(self, work: EngineWork, arrivals: Arrivals | None = None) -> AsyncGenerator[EngineEvent, None]:
        """See the port. The pictures' slots are read until the first event.

        Closed before that, it waits for the process to have let go of them: what it still read would be kept under the pictures' names.
        """
        return self._answer(work, arrivals, now())

    async def _answer(
        self, work: EngineWork, arrivals: Arrivals | None, asked: float
    ) -> AsyncGenerator[EngineEvent, None]:
        arrivals = arrivals or Arrivals(set())
        message = Generate(arrivals.filled(work), asked)
        worker, request_id, stream = self._ask(work.request_id, message)

        def tell(index: int, picture: PictureInput) -> None:
            worker.send(PictureReady(request_id, index, picture))

        with arrivals.told(tell):
            async with aclosing(self._events(worker, request_id, stream)) as events:
                async for event in events:
                    yield event

    def _ask(self, request_id: str, message: Any) -> tuple[Worker, str, _Stream]:
        """Send ``message``, which asks for an answer to a request; return what :meth:`_events` takes. Raises EngineUnavailable."""
        if request_id in self._streams:
            raise ValueError(f"request {request_id} is open already")
        worker = self._usable_worker()
        worker.send(message)
        stream = self._streams[request_id] = _Stream()
        return worker, request_id, stream

    async def _events(self, worker: Worker, request_id: str, stream: _Stream) -> AsyncGenerator[EngineEvent, None]:
        begun = ended = False
        self._load.llm_waiting += 1
        try:
            while not ended:
                event = await stream.get()
                if not begun:
                    begun = True
                    self._load.llm_waiting -= 1
                    self._load.llm_running += 1
                if isinstance(event, (FailEvent, FoveateError)):
                    ended = True
                    raise event.error.error() if isinstance(event, FailEvent) else event
                ended = isinstance(event, FinishEvent) and event.last
                yield event
        finally:
            try:
                if not ended:
                    worker.send(Cancel(request_id))
                if not begun:
                    await settled(asyncio.ensure_future(stream.closed()))
            finally:
                if begun:
                    self._load.llm_running -= 1
                else:
                    self._load.llm_waiting -= 1
                del self._streams[request_id]

    # --------------------------------------------------------------------------------------------------------- encoder

    async def encode(
        self, prepared: PreparedImage, out: Slot, *, deadline: float, purpose: Purpose = UNKNOWN
    ) -> EncodedImage:
        """See the port. Returns or raises only when the process no longer uses the slots, so they may be given back at
        once.

        Cancelled, it waits for the process to say so: at once when the picture has not started, else until its batch is
        done.
        """
        worker = self._usable_worker()
        job_id = next(self._job_ids)
        future: asyncio.Future[EncodedImage] = asyncio.get_running_loop().create_future()
        self._encoding[job_id] = future
        submitted_at = now()
        self._encoder_load.submitted(job_id)
        try:
            worker.send(Encode(job_id, prepared, out, deadline, submitted_at))
            done, _ = await asyncio.wait({future}, timeout=max(0.0, deadline - submitted_at))
            if done:
                return future.result()
            await self._settle(worker, job_id, future)
            raise DeadlineExceeded(detail="the deadline passed while a picture was encoded")
        except asyncio.CancelledError:
            await self._settle(worker, job_id, future)
            raise
        finally:
            del self._encoding[job_id]

    async def _settle(self, worker: Worker, job_id: int, future: asyncio.Future[EncodedImage]) -> None:
        """Cancel a picture and wait until the process has let go of its slots (it answers, or it ends)."""
        worker.send(CancelEncode(job_id))
        await settled(future)
