"""A Ray cluster of two nodes on this machine, which is a real one but for the network between them.

Ray is imported when it is used: it brings other versions of packages that tests use too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from foveate.runtime.arena import Arena
from foveate.runtime.port import Runtime, WorkerSpec

STORE_BYTES = 80 << 20
"""Of each node's object store; Ray takes no less than 75 MiB."""


def needs(spec: WorkerSpec) -> Mapping[str, float]:
    """Every worker is to be away from the gateway's node."""
    return {"away": 0.01}


async def connected(arena: Arena) -> Runtime:
    from foveate.runtime.ray.cluster import ClusterConfig
    from foveate.runtime.ray.runtime import RayRuntime

    return await RayRuntime.connected(arena, ClusterConfig("auto", needs))


def add_node(cluster: Any) -> Any:
    """A node that takes workers."""
    return cluster.add_node(num_cpus=0, resources={"away": 1}, object_store_memory=STORE_BYTES)


@contextlib.contextmanager
def two_nodes() -> Iterator[Any]:
    """A head node, on which no worker is to be that does not ask for it, and one that takes workers. Nothing is connected to it yet."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "resources": {"here": 1},
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        },
    )
    try:
        add_node(cluster)
        yield cluster
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def driving() -> Iterator[Any]:
    """As :func:`two_nodes`, with this process as a driver on its head."""
    from foveate.runtime.ray.cluster import ray  # as we import it

    with two_nodes() as cluster:
        ray.init(address=cluster.address, namespace="foveate", configure_logging=False)
        try:
            yield cluster
        finally:
            ray.shutdown()
