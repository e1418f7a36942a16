"""What the tests of engines share: a client whose process the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.unit.engines.bench import Bench

from foveate.engines import process_client


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(process_client, "_RESTART_SECONDS_MIN", 0.01)
    bench = Bench()
    await bench.engine.start()
    yield bench
    await bench.engine.stop(seconds_max=1)
