"""What is made once for all engines: a runtime, so that what they import is imported once, and one server with vLLM inside.

That server is shared by files; tests that kill parts of it are in test_vllm_server.py, which runs last, and at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.blackbox.origins import Origin, origin
from tests.blackbox.server import Server
from tests.contracts.bench import MODEL
from tests.contracts.vllm_server import serving_vllm
from tests.forked import forked_forkservers

from foveate.models.preload import preload_modules
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.port import Runtime


@pytest.fixture(scope="session", autouse=True)
def _forked_forkservers() -> Iterator[None]:
    with forked_forkservers():
        yield


@pytest.fixture(scope="session")
def runtime() -> Iterator[LocalRuntime]:
    made = LocalRuntime(
        Arena(256 << 20),
        preload=(*preload_modules(MODEL.family), "foveate.engines.embedded.process", "foveate.engines.vllm.preload"),
    )
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="session")
def web() -> Iterator[Origin]:
    with origin() as made:
        yield made


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory, web: Origin) -> Iterator[Server]:
    made = serving_vllm(tmp_path_factory.mktemp("vllm"), web)
    try:
        yield made
    finally:
        made.kill_all()


@pytest.fixture(scope="session")
def ray_runtimes(ray_cluster: Any) -> Iterator[list[Runtime]]:
    """Room for one that all tests share, so that they meet actors that others have left: who needs it first makes it."""
    made: list[Runtime] = []
    yield made
    for runtime in made:
        asyncio.run(runtime.close())
