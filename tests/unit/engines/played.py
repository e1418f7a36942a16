"""Engine processes that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from foveate.core.errors import StartupError
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot, TensorBundle
from foveate.engines.port import EngineInfo
from foveate.runtime.port import Progress, Ready, WorkerSpec
from foveate.runtime.pulse import Ping, Pong

INFO = EngineInfo("model", "version", 64, 1000, picture_token_id=7)
BUNDLE = TensorBundle(Slot(0, 64), (), 0)
PREPARED = PreparedImage("<image>", 1, BUNDLE, {}, ())
ENCODED = EncodedImage(BUNDLE, 1, ())


class FakeWorker:
    """A worker process that does what the test says."""

    def __init__(self, spec: WorkerSpec, fails: bool, info: EngineInfo) -> None:
        self.spec = spec
        self.fails = fails
        self.info = info
        self.alive = False
        self.hangs = False
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.say: Callable[[Any], None] = lambda message: None
        self._on_exit: Callable[[], None] = lambda: None

    async def start(
        self, *, on_message: Callable[[Any], None], on_exit: Callable[[], None], seconds_max: float
    ) -> Ready:
        await asyncio.sleep(0)
        on_message(Progress("loading"))
        if self.fails:
            raise StartupError("no memory")
        self.say, self._on_exit, self.alive = on_message, on_exit, True
        return Ready(msgspec.to_builtins(self.info))

    def send(self, message: Any) -> None:
        if isinstance(message, Ping):
            if not self.hangs:
                self.say(Pong())
        elif self.alive:
            self.sent.put_nowait(message)

    def kill(self) -> None:
        self.alive = False
        self._on_exit()

    async def stop(self, *, seconds_max: float) -> None:
        if self.alive:
            self.kill()


class FakeRuntime:
    def __init__(self) -> None:
        self.workers: list[FakeWorker] = []
        self.starts_that_fail = 0
        self.info = INFO
        self.another = asyncio.Event()

    def worker(self, spec: WorkerSpec) -> FakeWorker:
        fails = self.starts_that_fail > 0
        self.starts_that_fail -= fails
        self.workers.append(FakeWorker(spec, fails, self.info))
        if len(self.workers) > 1:
            self.another.set()
        return self.workers[-1]

    async def close(self) -> None:
        for worker in self.workers:
            await worker.stop(seconds_max=1)
