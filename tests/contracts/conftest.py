"""One runtime for all engines: what they import is imported once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.contracts.bench import MODEL

from foveate.models.preload import preload_modules
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime


@pytest.fixture(scope="session")
def runtime() -> Iterator[LocalRuntime]:
    made = LocalRuntime(
        Arena(256 << 20),
        preload=(*preload_modules(MODEL.family), "foveate.engines.embedded.process", "foveate.engines.vllm.preload"),
    )
    yield made
    asyncio.run(made.close())
