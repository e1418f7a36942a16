"""How long a worker is missed whose Ray node is lost: until the gateway knows, and until a successor on another node is ready.

    python -m benchmarks.ray_node_loss                  # Ray as it comes
    python -m benchmarks.ray_node_loss --quick          # Ray's own intervals shortened as docs/ray.md says

A cluster of three nodes on this machine. In turn a node's raylet is killed, as when it crashes or its pod is deleted, and all that a node
runs is stopped at once, as when its machine loses power or its network. The worker imports nothing, so that what a model's libraries and
weights take to load comes on top. Prints medians and the worst, in seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any, Final, Literal

import psutil

from foveate.runtime.arena import Arena
from foveate.runtime.port import Ready, WorkerContext, WorkerSpec
from foveate.runtime.pulse import TICK_SECONDS, Ping, Pong, Pulse
from foveate.runtime.ray.cluster import ClusterConfig
from foveate.runtime.ray.runtime import RayRuntime
from foveate.runtime.ray.worker import RayWorker

MIB: Final = 2**20
QUICK: Final = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "raylet_death_check_interval_milliseconds": 200,
    "timeout_ms_task_wait_for_death_info": 200,
}
"""Ray's settings of these names; the environment's are the same with RAY_ before them."""
How = Literal["killed", "silent"]


def answer(context: WorkerContext) -> None:
    """The worker."""
    context.send(Ready({}))
    while context.receive() is not None:
        context.send(Pong())


@contextlib.contextmanager
def cluster(quick: bool) -> Iterator[Any]:
    """Yield a cluster whose head takes no worker."""
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * MIB}
    if quick:
        head["_system_config"] = QUICK
    made: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made
    finally:
        made.shutdown()


def add_node(made: Any) -> None:
    """Add a node that takes workers."""
    made.add_node(num_cpus=0, resources={"away": 1}, object_store_memory=80 * MIB)


def lose(made: Any, node: Any, how: How) -> list[psutil.Process]:
    """Lose a node; return what is left of it to be killed."""
    if how == "killed":
        made.remove_node(node, allow_graceful=False)
        return []
    roots = [psutil.Process(one.process.pid) for kind in node.all_processes.values() for one in kind]
    left = [*roots, *(child for root in roots for child in root.children(recursive=True))]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    return left


async def measure(made: Any, runtime: RayRuntime, how: How, hang_seconds: float) -> tuple[float, float]:
    """Return the seconds until the gateway knows, and until there is a successor."""
    ended, pulse = asyncio.Event(), Pulse(hang_seconds)
    first = await started(runtime, ended, pulse)
    add_node(made)
    doomed = next(node for node in made.worker_nodes if node.node_id == first.node)
    watching = asyncio.create_task(watch(first, pulse))
    await asyncio.sleep(2)
    lost = time.perf_counter()
    left = await asyncio.to_thread(lose, made, doomed, how)
    await ended.wait()
    known = time.perf_counter() - lost
    watching.cancel()
    second = await started(runtime, asyncio.Event(), pulse)
    back = time.perf_counter() - lost
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if left:
        await asyncio.to_thread(made.remove_node, doomed, allow_graceful=False)
    await second.stop(seconds_max=5)
    return known, back


async def started(runtime: RayRuntime, ended: asyncio.Event, pulse: Pulse) -> RayWorker:
    """Return a worker that is ready."""
    worker = runtime.worker(WorkerSpec("media", 0, "benchmarks.ray_node_loss:answer", None, Ping, Pong))
    await worker.start(on_message=lambda _: pulse.answered(), on_exit=ended.set, seconds_max=120)
    return worker


async def watch(worker: RayWorker, pulse: Pulse) -> None:
    """Kill it when it hangs, as whoever owns a worker does."""
    while True:
        await asyncio.sleep(TICK_SECONDS)
        if not pulse.ask(worker):
            worker.kill()
            return


async def run(made: Any, repeats: int, hang_seconds: float) -> None:
    """Print a line for each way to lose a node."""
    runtime = await RayRuntime.connected(Arena(MIB), ClusterConfig(made.address, lambda spec: {"away": 0.1}))
    try:
        for how in ("killed", "silent"):
            took = [await measure(made, runtime, how, hang_seconds) for _ in range(repeats)]
            known, back = zip(*took, strict=True)
            print(
                f"{how:7}: known after {statistics.median(known):5.2f} s (worst {max(known):5.2f}), "
                f"successor ready after {statistics.median(back):5.2f} s (worst {max(back):5.2f})"
            )
    finally:
        await runtime.close()


def main() -> None:
    """Run as ``python -m benchmarks.ray_node_loss``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--hang-seconds", type=float, default=1.0, help="As topology.hang_seconds and engine.hang_seconds."
    )
    given = parser.parse_args()
    with cluster(given.quick) as made:
        add_node(made)
        asyncio.run(run(made, given.repeats, given.hang_seconds))


if __name__ == "__main__":
    from benchmarks import ray_node_loss  # by the name that the worker knows its messages by

    ray_node_loss.main()
