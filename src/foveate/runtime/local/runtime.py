"""The runtime of one machine: a forkserver, its workers, and the arena they share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from foveate.runtime.arena import Arena
from foveate.runtime.local.launcher import ForkServer
from foveate.runtime.local.process import LocalWorker
from foveate.runtime.port import WorkerSpec


class LocalRuntime:
    """Implements :class:`foveate.runtime.port.Runtime`."""

    def __init__(self, arena: Arena, *, preload: Sequence[str] = ()) -> None:
        """``preload`` names modules that every worker finds imported; they must start no thread and touch no device."""
        self.arena = arena
        self._forkserver = ForkServer(arena, preload)
        self._workers: set[LocalWorker] = set()

    def worker(self, spec: WorkerSpec) -> LocalWorker:
        """See the port."""
        worker = LocalWorker(spec, self._forkserver, self._workers.discard)
        self._workers.add(worker)
        return worker

    def processes(self) -> list[tuple[str, int]]:
        """Return what each process of ours is and its pid, this one's first. May be called from any thread."""
        found = [("gateway", os.getpid())]
        if self._forkserver.pid is not None:
            found.append(("forkserver", self._forkserver.pid))
        return found + [(worker.spec.role, worker.pid) for worker in list(self._workers) if worker.pid is not None]

    async def close(self) -> None:
        """See the port. Workers that still run are killed: whoever wants them to finish stops them first."""
        workers = list(self._workers)
        for worker in workers:
            worker.kill()
        # Those that exist are reaped by the forkserver; those that it has not forked yet end with it.
        await asyncio.gather(*(worker.wait() for worker in workers if worker.pid is not None))
        await self._forkserver.close()
        await asyncio.gather(*(worker.wait() for worker in workers))
        self.arena.close()
