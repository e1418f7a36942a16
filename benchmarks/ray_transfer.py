"""What a worker on another node of a Ray cluster costs: a message and its answer, and bytes there and back.

    python -m benchmarks.ray_transfer                    # a cluster of two nodes on this machine: no network, all else as it is
    python -m benchmarks.ray_transfer --address auto     # an existing one, whose other nodes have this repository and the resource "away"

Prints medians, in milliseconds, and how many times a copy within this process's memory they are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from foveate.core.memory import Slot
from foveate.runtime.arena import Arena
from foveate.runtime.port import Ready, Worker, WorkerContext, WorkerSpec
from foveate.runtime.ray.cluster import ClusterConfig
from foveate.runtime.ray.runtime import RayRuntime

MIB: Final = 2**20
SIZES_MIB: Final = (0, 1, 4, 16)


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """Copy ``source``, where there is one, to ``out``."""

    source: Slot | None
    out: Slot | None


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """Done."""

    slot: Slot | None


def answer(context: WorkerContext) -> None:
    """The worker."""
    context.send(Ready({}))
    while (message := context.receive()) is not None:
        if message.source is not None and message.out is not None:
            context.arena.view(message.out)[:] = context.arena.view(message.source)
        context.send(Copied(message.out))


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[str]:
    """Yield the address of the cluster that was named, or of one of two nodes that is made for the while."""
    if address is not None:
        yield address
        return
    from ray.cluster_utils import Cluster

    made: Any = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 160 * MIB},
    )
    made.add_node(num_cpus=0, resources={"away": 1}, object_store_memory=160 * MIB)
    try:
        yield made.address
    finally:
        made.shutdown()


async def measure(address: str, repeats: int) -> None:
    """Print a line for each size."""
    runtime = await RayRuntime.connected(Arena(64 * MIB), ClusterConfig(address, lambda spec: {"away": 0.1}))
    answers: asyncio.Queue[Any] = asyncio.Queue()
    worker = runtime.worker(WorkerSpec("media", 0, "benchmarks.ray_transfer:answer", None, Copy, Copied))
    try:
        await worker.start(on_message=answers.put_nowait, on_exit=lambda: answers.put_nowait(None), seconds_max=120)
        for size in SIZES_MIB:
            print(await measure_size(size, runtime.arena, worker, answers, repeats=repeats))
    finally:
        await runtime.close()


async def measure_size(size: int, arena: Arena, worker: Worker, answers: asyncio.Queue[Any], *, repeats: int) -> str:
    """Return the line of ``size`` MiB there and back."""
    slots = [arena.allocate(size * MIB) for _ in range(2)] if size else [None, None]
    took, copied = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        worker.send(Copy(*slots))
        if await answers.get() is None:
            raise SystemExit("the worker ended")
        took.append(time.perf_counter() - began)
        if slots[0] is not None and slots[1] is not None:
            began = time.perf_counter()
            np.copyto(np.frombuffer(arena.view(slots[1]), np.uint8), np.frombuffer(arena.view(slots[0]), np.uint8))
            copied.append(time.perf_counter() - began)
    for slot in slots:
        if slot is not None:
            arena.release(slot)
    whole = statistics.median(took) * 1e3
    ratio = f", {whole / (2e3 * statistics.median(copied)):.0f} times two copies in memory" if copied else ""
    return f"{size:3d} MiB there and back: {whole:8.2f} ms{ratio}"


def main() -> None:
    """Run as ``python -m benchmarks.ray_transfer``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address")
    parser.add_argument("--repeats", type=int, default=50)
    given = parser.parse_args()
    with cluster(given.address) as address:
        asyncio.run(measure(address, given.repeats))


if __name__ == "__main__":
    from benchmarks import ray_transfer  # by the name that the worker knows its messages by

    ray_transfer.main()
