"""The runtime of a Ray cluster: this process is its driver, and every worker's process is held by an actor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from foveate.runtime.arena import Arena
from foveate.runtime.port import WorkerSpec
from foveate.runtime.ray.cluster import ClusterConfig, Hosts, connect
from foveate.runtime.ray.worker import RayWorker


class RayRuntime:
    """Implements :class:`foveate.runtime.port.Runtime`."""

    def __init__(self, arena: Arena, hosts: Hosts, disconnect: Callable[[], None]) -> None:
        """Made by :meth:`connected`."""
        self.arena = arena
        self._hosts = hosts
        self._disconnect = disconnect
        self._workers: set[RayWorker] = set()

    @classmethod
    async def connected(cls, arena: Arena, config: ClusterConfig, *, preload: Sequence[str] = ()) -> RayRuntime:
        """Join the cluster; ``preload`` as of :class:`foveate.runtime.local.runtime.LocalRuntime`. Raises StartupError."""
        disconnect = await connect(config)
        return cls(arena, Hosts(config, arena.size_bytes, preload), disconnect)

    def worker(self, spec: WorkerSpec) -> RayWorker:
        """See the port."""
        worker = RayWorker(spec, self._hosts, self.arena, self._workers.discard)
        self._workers.add(worker)
        return worker

    def processes(self) -> list[tuple[str, int]]:
        """See the port: this one's alone. Others are on their nodes, where Ray counts what they hold."""
        return [("gateway", os.getpid())]

    async def close(self) -> None:
        """See the port. Workers that still run are killed: whoever wants them to finish stops them first."""
        workers = list(self._workers)
        for worker in workers:
            worker.kill()
        await asyncio.gather(*(worker.wait() for worker in workers))
        self._hosts.close()
        await asyncio.to_thread(self._disconnect)
        self.arena.close()
