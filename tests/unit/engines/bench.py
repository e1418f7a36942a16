"""An embedded engine's client whose process the test plays."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.engines.played import BUNDLE, FakeRuntime, FakeWorker

from foveate.core.clock import now
from foveate.core.request import Sampling
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.engines.messages import Generate
from foveate.engines.port import NOT_THERE, EngineWork, PictureInput
from foveate.observe.load import Load


class Bench:
    """A client, and the workers that it starts."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.lines: list[str] = []
        self.restarted = asyncio.Event()
        self.load = Load()
        self.engine = EmbeddedEngine(
            self.runtime,
            EmbeddedConfig("directory", "model"),
            threads=2,
            start_seconds_max=5,
            on_progress=self.lines.append,
            on_restart=self.restarted.set,
            load=self.load,
        )

    @property
    def worker(self) -> FakeWorker:
        return self.runtime.workers[-1]

    def generate(self, request_id: str = "r") -> Any:
        return self.engine.generate(EngineWork(request_id, [1], [], Sampling(5), now() + 60))

    async def generating(self, request_id: str = "r") -> tuple[Any, asyncio.Task[Any]]:
        """Return an open generation and the task that waits for its next event."""
        stream = self.generate(request_id)
        task = asyncio.ensure_future(anext(stream))
        message = await self.worker.sent.get()
        assert isinstance(message, Generate)
        return stream, task


def late(*there: bool) -> list[PictureInput]:
    """A request's pictures, of which those are there that are told to be."""
    return [PictureInput(BUNDLE if is_there else NOT_THERE, 4, {}, str(place)) for place, is_there in enumerate(there)]
