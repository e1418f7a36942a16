"""The gateway's side of the embedded engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EngineDied
from foveate.core.memory import Slot
from foveate.engines.arrivals import OVERLAP, Arrivals
from foveate.engines.embedded.messages import (
    EmbeddedConfig,
    Prefill,
    Prefilled,
    Receives,
    Sends,
    SlotFree,
    TokenDecode,
)
from foveate.engines.messages import Cancel, PictureReady
from foveate.engines.port import EngineEvent, EngineWork, FailEvent, PictureInput
from foveate.engines.process_client import ProcessEngine
from foveate.runtime.port import Runtime, Worker
from foveate.runtime.settled import settled

AskSlot = Callable[[], Awaitable[Slot]]
ENTRY = "foveate.engines.embedded.process:main"


class EmbeddedEngine(ProcessEngine):
    """transformers models under Foveate's own continuous batching.

    Any of its processes can prefill a prompt for another one to go on with: which does what is decided for each request.
    """

    features = frozenset({OVERLAP})
    receives = Receives
    sends = Sends

    def __init__(self, runtime: Runtime, config: EmbeddedConfig, **given: Any) -> None:
        """``given`` are :class:`ProcessEngine`'s keyword arguments."""
        super().__init__(runtime, ENTRY, config, **given)
        self.encodes = config.encoder
        """Whether its process has a vision tower."""
        self._prefilling: dict[str, asyncio.Future[Prefilled]] = {}
        self._lent: dict[str, Callable[[], None]] = {}
        """For each request whose K/V the process may touch: what is to be done when it no longer does."""

    async def prefill(self, work: EngineWork, out: AskSlot, *, submitted_at: float, arrivals: Arrivals) -> Prefilled:
        """Have a prompt prefilled into the slot that ``out`` brings, which is asked for when all of its pictures are there. Returns or
        raises only when the process no longer uses that slot, or the pictures'.

        Raises EngineUnavailable, EngineFailed, QueueFull, InvalidParameter, DeadlineExceeded, and what ``out`` does.
        """
        request_id = work.request_id
        slot = await out() if arrivals.complete else None
        result: asyncio.Future[Prefilled] = asyncio.get_running_loop().create_future()
        free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        worker = self._usable_worker()
        worker.send(Prefill(arrivals.filled(work), submitted_at, slot))
        self._prefilling[request_id], self._lent[request_id] = result, lambda: free.set_result(None)
        try:
            if slot is None:
                await self._bring(arrivals, out, work, worker)
            done, _ = await asyncio.wait({result}, timeout=max(0.0, work.deadline - now()))
            if not done:
                raise DeadlineExceeded(detail="the deadline passed in prefill")
            return result.result()
        finally:
            if not result.done():
                worker.send(Cancel(request_id))
            try:
                await settled(free)
            finally:
                del self._prefilling[request_id]
                if result.done():
                    result.exception()  # who was cancelled does not ask, and asyncio would report it as forgotten

    async def _bring(self, arrivals: Arrivals, out: AskSlot, work: EngineWork, worker: Worker) -> None:
        """Let the process have a prompt's pictures as they come, and the slot with the last one, unless it fails before or time is up."""
        request_id, result = work.request_id, self._prefilling[work.request_id]

        def tell(index: int, picture: PictureInput) -> None:
            if not arrivals.complete:
                worker.send(PictureReady(request_id, index, picture))

        with arrivals.told(tell):
            either: tuple[asyncio.Future[Any], ...] = (result, arrivals.completed)
            seconds = max(0.0, work.deadline - now())
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if arrivals.complete and not result.done():
            slot = await out()
            worker.send(PictureReady(request_id, *arrivals.last, slot))

    async def go_on(self, message: TokenDecode, *, on_free: Callable[[], None]) -> AsyncGenerator[EngineEvent, None]:
        """Draw the tokens behind a prompt that another process prefilled; as :meth:`generate`.

        ``on_free`` is called, once, when the process does not read the K/V any more, which may be after this was closed.
        """
        request_id = message.work.request_id
        try:
            asked = self._ask(request_id, message)
        except Exception:
            on_free()
            raise
        self._lent[request_id] = on_free
        async with aclosing(self._events(*asked)) as events:
            async for event in events:
                yield event

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
                result.set_exception(EngineDied(detail=why))
        for request_id in tuple(self._lent):
            self._free(request_id)
        super()._end_open(why)

    def _free(self, request_id: str) -> None:
        on_free = self._lent.pop(request_id, None)
        if on_free is not None:
            on_free()
