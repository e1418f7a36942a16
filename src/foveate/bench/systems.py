"""Foveate beside the servers it is compared with, all with one model and as many threads."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from foveate.bench.origin import fetching
from foveate.bench.server import HOST, Running, free_port, running, started
from foveate.models.files import resolve_model

PICTURE_PIXELS_MAX: Final = 200_704
"""A full-size picture costs a CPU's encoder half a second, beside which nothing else is visible."""

MODEL: Final = "demo"
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What Foveate's own vLLM runs with (foveate.engines.vllm.environment), for every system."""

MEDIA_CACHE: Final = ("--cache-media-bytes-max", "512MiB")
SYSTEMS: Final = {
    "vllm": "plain vLLM",
    "foveate-vllm": "Foveate, `--engine vllm`",
    "foveate-upstream": "Foveate, `--engine upstream`, in front of a plain vLLM",
}


class System(msgspec.Struct, frozen=True):
    """A system under test: the server that is asked, and every server that works for it."""

    name: str
    port: int
    servers: tuple[Running, ...]

    def cpu_seconds(self) -> float:
        """Return the processor time of all its processes so far."""
        return sum(sum(server.cpu_seconds().values()) for server in self.servers)


def capped_model(directory: Path) -> Path:
    """Copy the shipped model into ``directory`` with a processor that makes pictures of at most :data:`PICTURE_PIXELS_MAX`."""
    target = directory / MODEL
    shutil.copytree(resolve_model(None).directory, target)
    file = target / "preprocessor_config.json"
    told: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    told["size"]["longest_edge"] = PICTURE_PIXELS_MAX
    file.write_bytes(msgspec.json.format(msgspec.json.encode(told)))
    return target


@contextmanager
def plain_vllm(model: Path) -> Iterator[Running]:
    """Run ``vllm serve``; its console script looks for a distribution that the CPU's package is not."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", MODEL, "--host", HOST, "--port", str(port), "--dtype", "float32"]
    command += ["--enforce-eager", "--disable-uvicorn-access-log"]
    with started(command, port, "/health", **ENVIRONMENT) as server:
        yield server


@contextmanager
def system(name: str, model: Path, origin_port: int) -> Iterator[System]:
    """Run the system of that name (:data:`SYSTEMS`)."""
    flags = (*fetching(origin_port), *MEDIA_CACHE)
    if name == "foveate-vllm":
        flags += ("--model", str(model), "--served-model-name", MODEL, "--engine-threads", "1")
        with running("--engine", "vllm", *flags) as server:
            yield System(name, server.port, (server,))
        return
    with plain_vllm(model) as vllm:
        if name == "vllm":
            yield System(name, vllm.port, (vllm,))
            return
        behind = f"http://{HOST}:{vllm.port}"
        with running("--engine", "upstream", "--upstream", behind, *flags) as gateway:
            yield System(name, gateway.port, (gateway, vllm))
