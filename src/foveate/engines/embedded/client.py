"""The gateway's side of the embedded engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EngineFailed
from foveate.core.memory import Slot
from foveate.engines.embedded.messages import (
    EmbeddedConfig,
    Prefill,
    Prefilled,
    Receives,
    Sends,
    SlotFree,
    TokenDecode,
)
from foveate.engines.messages import Cancel
from foveate.engines.port import EngineEvent, EngineWork, FailEvent
from foveate.engines.process_client import ProcessEngine
from foveate.runtime.port import Runtime

ENTRY = "foveate.engines.embedded.process:main"


class EmbeddedEngine(ProcessEngine):
    """transformers models under Foveate's own continuous batching.

    Any of its processes can prefill a prompt for another one to go on with: which does what is decided for each request.
    """

    receives = Receives
    sends = Sends

    def __init__(self, runtime: Runtime, config: EmbeddedConfig, **given: Any) -> None:
        """``given`` are :class:`ProcessEngine`'s keyword arguments."""
        super().__init__(runtime, ENTRY, config, **given)
        self._prefilling: dict[str, asyncio.Future[Prefilled]] = {}
        self._lent: dict[str, Callable[[], None]] = {}
        """For each request whose K/V the process may touch: what is to be done when it no longer does."""

    async def prefill(
        self, work: EngineWork, out: Slot, *, submitted_at: float, on_free: Callable[[], None]
    ) -> Prefilled:
        """Have a prompt prefilled into ``out``. ``on_free`` is called, once, when the process does not write there any more, which may be
        later than this returns or raises. The pictures' slots are read until then.

        Raises EngineUnavailable, EngineFailed, QueueFull, InvalidParameter, DeadlineExceeded.
        """
        worker = self._usable_worker()
        result: asyncio.Future[Prefilled] = asyncio.get_running_loop().create_future()
        self._prefilling[work.request_id], self._lent[work.request_id] = result, on_free
        worker.send(Prefill(work, submitted_at, out))
        try:
            done, _ = await asyncio.wait({result}, timeout=max(0.0, work.deadline - now()))
            if not done:
                raise DeadlineExceeded(detail="the deadline passed in prefill")
            return result.result()
        finally:
            del self._prefilling[work.request_id]
            if not result.done():
                worker.send(Cancel(work.request_id))

    def go_on(self, message: TokenDecode, *, on_free: Callable[[], None]) -> AsyncGenerator[EngineEvent, None]:
        """Draw the tokens behind a prompt that another process prefilled; as :meth:`generate`.

        ``on_free`` is called, once, when the process does not read the K/V any more.
        """
        self._usable_worker()
        self._lent[message.work.request_id] = on_free
        return self._stream(message.work.request_id, message)

    def _receive(self, message: Any) -> None:
        match message:
            case Prefilled():
                self._free(message.request_id)
                result = self._prefilling.get(message.request_id)
                if result is not None and not result.done():
                    result.set_result(message)
            case SlotFree():
                self._free(message.request_id)
            case FailEvent() if message.request_id in self._prefilling:
                result = self._prefilling[message.request_id]
                if not result.done():
                    result.set_exception(message.error.error())
            case _:
                super()._receive(message)

    def _end_open(self, why: str) -> None:
        for result in self._prefilling.values():
            if not result.done():
                result.set_exception(EngineFailed(detail=why))
        for request_id in tuple(self._lent):
            self._free(request_id)
        super()._end_open(why)

    def _free(self, request_id: str) -> None:
        on_free = self._lent.pop(request_id, None)
        if on_free is not None:
            on_free()
