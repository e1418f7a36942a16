"""What the gateway and the process that makes the reference embeddings say to each other, and the gateway's side of it.

The process lives for one comparison: it loads the published model, encodes the fixed picture, writes it where it is told, and ends.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from foveate.core.errors import StartupError
from foveate.core.memory import Slot, TensorBundle
from foveate.runtime.port import Ready, Runtime, Worker, WorkerSpec

ENTRY: Final = "foveate.encoders.reference:main"
WRITE_SECONDS_MAX: Final = 60.0


class ReferenceConfig(msgspec.Struct, frozen=True):
    """``tokens`` above 0: also answer the question in so many tokens, which takes the whole model in float32."""

    model_dir: str
    tokens: int = 0


class ReferenceInfo(msgspec.Struct, frozen=True):
    """What the process made. ``values`` counts the numbers of all levels; ``top`` has, for each token of the answer, the natural logarithms
    of the probabilities of the likeliest tokens by id. ``seconds``: time since its start.
    """

    rows: int
    levels: int
    values: int
    meta: dict[str, list[int]]
    drawn: list[int]
    top: list[dict[int, float]]
    seconds: float


class Refer(msgspec.Struct, frozen=True, tag="refer"):
    """Write the embeddings to ``out`` as ``dtype``, a torch dtype's name."""

    out: Slot
    dtype: str


class Referred(msgspec.Struct, frozen=True, tag="referred"):
    """They lie there."""

    embeddings: TensorBundle


class ReferenceProcess:
    """One process. Lives on the event loop."""

    def __init__(self, runtime: Runtime, config: ReferenceConfig, *, index: int, threads: int) -> None:
        self._worker: Worker = runtime.worker(
            WorkerSpec(
                "reference", index, ENTRY, msgspec.to_builtins(config), receives=Refer, sends=Referred, threads=threads
            )
        )
        self._info: ReferenceInfo | None = None
        self._reply: asyncio.Future[TensorBundle] | None = None

    @property
    def info(self) -> ReferenceInfo:
        """What it made; only after it was started."""
        assert self._info is not None, "the reference was started"
        return self._info

    async def start(self, *, seconds_max: float) -> None:
        """Load and encode. Raises StartupError."""
        ready: Ready = await self._worker.start(
            on_message=self._received, on_exit=self._exited, seconds_max=seconds_max
        )
        # JSON has text keys only, and so may what carries this.
        self._info = msgspec.convert(ready.info, ReferenceInfo, strict=False)

    async def write(self, out: Slot, dtype: str) -> TensorBundle:
        """Have it write the embeddings, once. Raises StartupError when it ends instead."""
        self._reply = asyncio.get_running_loop().create_future()
        self._worker.send(Refer(out, dtype))
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                return await self._reply
        except TimeoutError:
            raise StartupError("The reference for the self-check of embeddings does not answer.") from None

    async def stop(self) -> None:
        """End it."""
        await self._worker.stop(seconds_max=0.5)

    def _received(self, message: Any) -> None:
        if isinstance(message, Referred) and self._reply is not None and not self._reply.done():
            self._reply.set_result(message.embeddings)

    def _exited(self) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(
                StartupError("The reference for the self-check of embeddings ended unexpectedly.")
            )
