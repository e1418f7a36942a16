"""What a cluster adds to the runtime's promises: nodes that go, actors that stay, places that there are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.contracts.test_runtime_contract import MIB, Bench
from tests.ray_cluster import add_node, connected
from tests.workers import Ask, Sum, Write, Written

from foveate.core.errors import StartupError
from foveate.runtime.arena import Arena
from foveate.runtime.port import WorkerSpec

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
async def bench(ray_runtimes: list[Any]) -> AsyncIterator[Bench]:
    if not ray_runtimes:
        ray_runtimes.append(await connected(Arena(64 * MIB)))
    bench = Bench(ray_runtimes[0])
    yield bench
    for worker in bench.workers:
        worker.kill()
        await worker.wait()


async def test_a_node_that_goes_under_load_ends_its_workers_once(bench: Bench, ray_cluster: Any) -> None:
    """Bytes are on their way both ways when it goes. What comes back is on another node and does the same."""
    first: Any = await bench.started(index=10)
    doomed = next(node for node in ray_cluster.worker_nodes if node.node_id == first.node)
    add_node(ray_cluster)
    read, out = bench.arena.allocate(MIB), bench.arena.allocate(MIB)
    bench.arena.view(read)[:] = b"\1" * MIB

    async def load() -> int:
        answers = 0
        while True:
            first.send(Write(out, 1))
            first.send(Sum(read))
            assert await bench.messages.get() == Written(out)
            assert (await bench.messages.get()).value == MIB
            answers += 1

    loading = asyncio.ensure_future(load())
    await asyncio.sleep(1)
    await asyncio.to_thread(ray_cluster.remove_node, doomed, allow_graceful=False)
    async with asyncio.timeout(30):
        assert await bench.exits.get() == 10
    loading.cancel()
    assert not first.alive
    bench.messages = asyncio.Queue()

    # Nothing is written to the arena for it any more: what it was given may be given to others.
    bench.arena.view(out)[:] = b"\0" * MIB
    again: Any = await bench.started(index=10)
    assert again.node != first.node
    again.send(Sum(read))
    assert (await bench.messages.get()).value == MIB
    assert bytes(bench.arena.view(out)) == b"\0" * MIB
    assert bench.exits.empty()


async def test_a_successor_finds_the_actor_of_one_that_died(bench: Bench) -> None:
    first: Any = await bench.started(index=11)
    actor = first.host
    first.kill()
    await first.wait()
    again: Any = await bench.started(index=11)
    assert again.host is actor
    await again.stop(seconds_max=10)
    assert (await bench.messages.get()).value == "goodbye"
    after: Any = await bench.started(index=11)
    assert after.host is not actor, "who is stopped gives its node's resources back"


async def test_a_process_that_is_stopped_is_told_of(bench: Bench) -> None:
    worker: Any = await bench.started(index=12)
    assert not worker.suspended
    worker.send(Ask("suspend"))
    async with asyncio.timeout(20):
        while not worker.suspended:
            await asyncio.sleep(0.1)
    worker.kill()
    assert await bench.exits.get() == 12


async def test_a_place_that_no_node_has_is_named(ray_cluster: Any) -> None:
    from foveate.runtime.ray.cluster import ClusterConfig
    from foveate.runtime.ray.runtime import RayRuntime

    runtime = await RayRuntime.connected(Arena(MIB), ClusterConfig("auto", lambda spec: {"nowhere": 1}))
    bench = Bench(runtime)
    with pytest.raises(StartupError, match=r"No node of the Ray cluster had room for \{'nowhere': 1\}"):
        await bench.start(bench.worker(), seconds_max=1)
    await runtime.close()


async def test_an_actor_is_kept_for_whoever_needs_the_same_node() -> None:
    """An engine's number is given again, to one of another role too."""
    from foveate.runtime.ray.cluster import ClusterConfig, Host, Hosts

    hosts, ended = Hosts(ClusterConfig("auto", lambda spec: {}), 1 << 20, ()), list[str]()
    kept = cast(Host, SimpleNamespace(end=lambda: ended.append("prefill's")))
    hosts.keep(WorkerSpec("engine", 2, "", None, None, None, needs="prefill"), kept)
    hosts.drop(WorkerSpec("engine", 2, "", None, None, None, needs="decode"))
    assert ended == []
    hosts.drop(WorkerSpec("engine", 2, "", None, None, None, needs="prefill"))
    assert ended == ["prefill's"]
