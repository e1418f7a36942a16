"""The actor that holds a worker's process on its node: it starts it, hands messages and bytes on, and ends with the gateway.

One process at a time, and one after another: a successor of a process that died finds the libraries imported. Ray ends the actor when the
gateway ends or leaves the cluster, and the kernel ends the process with the actor.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import ray
from setproctitle import setproctitle

from foveate.core.clock import now
from foveate.core.errors import StartupError
from foveate.runtime.arena import Arena
from foveate.runtime.local.process import LocalWorker
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.named_bytes import written_by_worker
from foveate.runtime.port import Progress, WorkerSpec
from foveate.runtime.ray.parcel import BEAT_SECONDS, Parcel, add_bytes, machine, unpack_bytes

_UNREAD_MAX: Final = 100_000
"""Parcels that may wait for the gateway to read them; most are a token's."""
_PARCELS_MAX: Final = 64
_PARCELS_BYTES_MAX: Final = 32 * 2**20
"""What one answer to :meth:`WorkerHost.poll` holds at most, but for a single larger parcel."""


class WorkerHost:
    """The actor. Its methods are called by :class:`foveate.runtime.ray.worker.RayWorker` only; ``run`` numbers the processes it held."""

    def __init__(self, title: str, arena_bytes: int, preload: Sequence[str]) -> None:
        """``title`` is what the actor is called in lists; ``preload`` as of :class:`foveate.runtime.local.runtime.LocalRuntime`."""
        logging.basicConfig(level=logging.WARNING)
        self._title = title
        self._node = ray.get_runtime_context().get_node_id()
        setproctitle(f"{title} (host)")
        self._arena = Arena(arena_bytes)
        self._runtime = LocalRuntime(self._arena, preload=preload)
        self._encode = msgspec.msgpack.Encoder().encode
        self._run = 0
        self._worker: LocalWorker | None = None
        self._starting: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._decoder: msgspec.msgpack.Decoder[Any] | None = None
        self._parcels: deque[Parcel] = deque()
        self._is_ready = False
        self._early: list[Parcel] = []
        """What the process said before the gateway could be told that it is ready."""
        self._more = asyncio.Event()

    def __repr__(self) -> str:
        """What Ray puts before lines that the process writes."""
        return self._title

    async def where(self) -> tuple[str, str, float]:
        """Return Ray's id of the node, the machine (its kernel's boot id), and what its clock says."""
        return self._node, machine(), now()

    async def begin(self, run: int, packed: bytes, seconds_max: float) -> None:
        """Start the process of this pickled spec; what becomes of it is told by :meth:`poll`."""
        spec: WorkerSpec = pickle.loads(packed)
        self._run = run
        self._parcels.clear()
        self._early.clear()
        self._is_ready = False
        self._decoder = msgspec.msgpack.Decoder(spec.receives)
        self._worker = worker = self._runtime.worker(spec)
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat(), name="beat")
        self._starting = asyncio.create_task(self._start(worker, seconds_max), name=f"start {spec.title}")

    async def _start(self, worker: LocalWorker, seconds_max: float) -> None:
        try:
            ready = await worker.start(on_message=self._said, on_exit=self._exited, seconds_max=seconds_max)
        except (StartupError, OSError) as error:
            refusal = error if isinstance(error, StartupError) else _not_started(worker, error)
            worker.kill()
            await worker.wait()
            self._put(Parcel("failed", self._encode(refusal.record())))
        else:
            self._put(Parcel("ready", self._encode(ready)))
            self._is_ready = True
            self._parcels.extend(self._early)
            self._early.clear()

    async def poll(self, run: int) -> list[Parcel]:
        """Wait for what the process says and return it, in order."""
        while not self._parcels:
            self._more.clear()
            await self._more.wait()
        taken: list[Parcel] = []
        size = 0
        while self._parcels and len(taken) < _PARCELS_MAX and (not taken or size < _PARCELS_BYTES_MAX):
            taken.append(self._parcels.popleft())
            size += taken[-1].size
        return taken if run == self._run else []

    async def deliver(self, run: int, parcels: Sequence[Parcel]) -> None:
        """Put the parcels' bytes where they belong and hand the messages on, in order."""
        for parcel in parcels:
            await unpack_bytes(parcel, self._arena)
            if run != self._run or self._worker is None or self._decoder is None:
                return
            self._worker.send(self._decoder.decode(parcel.payload))

    async def stop(self, run: int, seconds_max: float) -> None:
        """Ask the process to end, and kill it after ``seconds_max``."""
        if run == self._run and self._worker is not None:
            await self._worker.stop(seconds_max=seconds_max)

    async def kill(self, run: int) -> None:
        """End the process at once."""
        if run == self._run and self._worker is not None:
            self._worker.kill()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            quiet = not self._parcels  # else the gateway has news to take
            if quiet and self._worker is not None and self._worker.alive:
                self._put(Parcel("held" if self._worker.suspended else "runs"))

    def _said(self, message: Any) -> None:
        parcel = add_bytes(Parcel(payload=self._encode(message)), written_by_worker(message), self._arena)
        if self._is_ready or isinstance(message, Progress):
            self._put(parcel)
        else:
            self._early.append(parcel)

    def _exited(self) -> None:
        if self._is_ready:
            self._put(Parcel("exited"))
        else:
            self._early.append(Parcel("exited"))

    def _put(self, parcel: Parcel) -> None:
        self._parcels.append(parcel)
        if len(self._parcels) > _UNREAD_MAX and self._worker is not None:
            self._worker.kill()  # the gateway does not read, or cannot: what it would read is of no use any more
        self._more.set()


def _not_started(worker: LocalWorker, error: OSError) -> StartupError:
    return StartupError(f"The process '{worker.spec.title}' cannot be started: {error.strerror}.", detail=repr(error))
