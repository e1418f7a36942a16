"""A server whose workers are on the nodes of a Ray cluster of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
from tests.blackbox.server import Server, title

NEEDS = tuple(
    flag
    for role in ("media", "encoder", "engine", "prefill", "decode")
    for flag in (f"--runtime-{role}-needs", "away=0.01")
)
"""None of its workers is on its own node."""


KEY = "fov-test-key-operator-0123456789"


class ServerOnRay(Server):
    """Its processes are those of the cluster's nodes, too, that have one of our titles. Its clients are operators."""

    def __init__(self, directory: Path, cluster: Any, *flags: str) -> None:
        self._cluster = cluster
        on_ray = ("--runtime", "ray", "--runtime-ray-address", cluster.address, *NEEDS)
        super().__init__(directory, *flags, *on_ray, FOVEATE_AUTH__KEYS=f"ops:default:plain:{KEY}:admin")

    def client(self, *, seconds: float = 60) -> httpx.Client:
        """See :class:`Server`."""
        made = super().client(seconds=seconds)
        made.headers["authorization"] = f"Bearer {KEY}"
        return made

    def processes(self) -> list[psutil.Process]:
        """See :class:`Server`. Those of a node that is gone are not found any more."""
        below = [one for one in _below(self._cluster) if title(one).startswith("foveate: ")]
        self._seen |= {process.pid: process for process in below}
        return [*super().processes(), *below]


def _below(cluster: Any) -> Iterator[psutil.Process]:
    """Yield every process that a node of the cluster has started."""
    there = {process.pid: process for process in psutil.process_iter(["ppid"])}
    found = {raylet.process.pid for node in cluster.list_all_nodes() for raylet in node.all_processes["raylet"]}
    while new := {pid for pid, process in there.items() if process.info["ppid"] in found} - found:
        found |= new
        yield from (there[pid] for pid in new)
