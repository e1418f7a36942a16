"""The gateway as an application of Ray Serve, by the configuration of the manifest for KubeRay's RayService.

What Ray Serve needs makes every node of a Ray cluster start slower, so `make test-ray-serve` puts it beside the other packages,
and only the processes of this cluster find it. Without it these tests are left out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.blackbox.pictures import ask, chat, one, url_of, user
from tests.blackbox.replies import assert_typed, content, events, joined
from tests.blackbox.server import Metrics, environment, eventually, free_port
from tests.blackbox.test_resilience import CHAT
from tests.meta.test_kuberay import served
from tests.ray_cluster import two_nodes

PACKAGES = Path(sys.prefix) / "ray-serve"
pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(not PACKAGES.is_dir(), reason="make test-ray-serve installs what Ray Serve needs"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")]))
        # Serve ends proxies that are not there after 15 s, which is too soon on a machine with other things to do.
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
        with two_nodes() as made:
            yield made


@pytest.fixture(scope="module")
def behind_serve(tmp_path_factory: pytest.TempPathFactory, cluster: Any) -> Iterator[str]:
    """The URL of a gateway that Ray Serve runs by the manifest's configuration, but for the port, the settings and the nodes there are."""
    directory = tmp_path_factory.mktemp("serve")
    settings = {
        "media": {"workers": 1},
        "engine": {"threads": 1},
        "runtime": {"kind": "ray", "media_needs": ["away=0.01"], "engine_needs": ["away=0.01"]},
    }
    (directory / "foveate.yaml").write_text(yaml.safe_dump(settings))
    chosen = served()
    (application,) = chosen["applications"]
    application["args"]["config"] = str(directory / "foveate.yaml")
    application["deployments"][0]["ray_actor_options"] = {"num_cpus": 0, "resources": {"here": 0.1}}
    url = f"http://127.0.0.1:{free_port()}"
    chosen |= {"http_options": {"host": "127.0.0.1", "port": int(url.rpartition(":")[2])}, "proxy_location": "HeadOnly"}
    (directory / "serve.yaml").write_text(yaml.safe_dump(chosen))
    command = [sys.executable, "-c", "from ray.serve.scripts import cli; cli()", "run", str(directory / "serve.yaml")]
    with (directory / "serve.log").open("wb") as log:
        serving = subprocess.Popen([*command, "--address", cluster.address], stdout=log, stderr=log, env=environment())

    def ready() -> bool:
        assert serving.poll() is None, (directory / "serve.log").read_text()[-3000:]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/ready", timeout=10).status_code == 200
        return False

    try:
        eventually("the application to be ready", ready)
        yield url
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60) == 0
    finally:
        serving.kill()
        serving.wait(60)


def test_the_same_behind_ray_serve(behind_serve: str) -> None:
    with httpx.Client(base_url=behind_serve, timeout=60) as http:
        found = http.post(CHAT, json=ask(url_of(one("red", "circle", seed=983))))
        assert content(found) == "A red circle."
        assert {"media_decode", "vision_encode", "llm_prefill"} <= {
            part.partition(";")[0].strip() for part in found.headers["server-timing"].split(",")
        }
        with http.stream("POST", CHAT, json=chat(user("Hello!"), stream=True)) as stream:
            assert joined(events(stream.iter_lines())).startswith("Hello!")
        refused = http.post(CHAT, json={"model": "x"})
        assert refused.status_code == 400
        assert_typed(refused.json()["error"])


def test_who_leaves_is_noticed_behind_ray_serve(behind_serve: str) -> None:
    endless = chat(user("Hello!"), stream=True, ignore_eos=True, max_tokens=3000)
    with httpx.Client(base_url=behind_serve, timeout=60) as http:
        with http.stream("POST", CHAT, json=endless) as stream:
            next(stream.iter_lines())
        eventually(
            "nothing in flight",
            lambda: Metrics(http.get("/metrics").text).total("foveate_requests_in_flight") == 0,
            seconds=10,
        )
