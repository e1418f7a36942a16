"""A server whose workers are on the nodes of a Ray cluster: the same answers, and no request lost when workers or a node go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.blackbox.conftest import SMALL
from tests.blackbox.on_ray import KEY, ServerOnRay
from tests.blackbox.pictures import ask, one, url_of
from tests.blackbox.replies import content
from tests.blackbox.server import Server, environment, eventually
from tests.blackbox.test_resilience import CHAT, assert_well, under_load
from tests.ray_cluster import add_node, two_nodes

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_nodes() as made:
        yield made


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory, cluster: Any) -> Iterator[Server]:
    """A server with one encode worker and no vision tower in its engine, none of whose workers are on its own node."""
    shared = ServerOnRay(
        tmp_path_factory.mktemp("ray"),
        cluster,
        *SMALL,
        *("--media-workers", "1", "--topology", "e-pd", "--topology-fallback", "off", "--no-engine-self-check"),
        *(
            "--topology-hang-seconds",
            "20",
            "--engine-hang-seconds",
            "20",
        ),  # nothing hangs here, but machines may have more to do
    )
    try:
        yield shared
        shared.stop()
    finally:
        shared.kill_all()


def test_the_same_answer_and_every_stage_is_timed(on_ray: Server) -> None:
    with on_ray.client() as http:
        found = http.post(CHAT, json=ask(url_of(one("red", "circle", seed=979))))
    assert content(found) == "A red circle."
    for stage in ("media_decode", "encoder_queue", "vision_encode", "embedding_transfer", "llm_queue", "llm_prefill"):
        assert stage in found.headers["server-timing"]
    (encoder,) = on_ray.titled("foveate: encoder 0")
    assert on_ray.pid not in {parent.pid for parent in encoder.parents()}, "its processes are the nodes'"


def test_encode_workers_come_and_go_while_it_serves(on_ray: Server) -> None:
    def set_(encoders: int) -> None:
        command = [sys.executable, "-m", "foveate", "topology", "set", "e-pd", "--encoders", str(encoders)]
        command += ["--url", on_ray.base_url]
        key = environment(FOVEATE_ADMIN_KEY=KEY)
        done = subprocess.run(command, env=key, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert f"encode workers: {encoders}" in done.stdout

    load = under_load(on_ray, lambda: [set_(2), set_(1)])
    assert [ended.error for ended in load.ended if ended.error is not None] == []
    eventually("one encode worker", lambda: not on_ray.titled("foveate: encoder 1"))
    assert_well(on_ray)


def test_requests_outlive_the_node_that_all_workers_are_on(on_ray: Server, cluster: Any) -> None:
    """Those that had no token are answered, or told that nobody can; later ones are answered by workers of another node."""
    (doomed,) = cluster.worker_nodes
    add_node(cluster)
    load = under_load(on_ray, lambda: cluster.remove_node(doomed, allow_graceful=False))
    assert {ended.error["code"] for ended in load.ended if ended.error is not None} <= {
        "engine_failed",
        "engine_unavailable",
        "encoders_unavailable",
        "media_workers_unavailable",
    }
    eventually("workers on the other node", on_ray.ready)
    assert_well(on_ray)
