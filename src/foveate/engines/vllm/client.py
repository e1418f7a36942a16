"""The gateway's side of the vLLM engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EngineDied
from foveate.core.request import OPTIONAL
from foveate.core.tool_use import AUTO_FEATURE
from foveate.engines.messages import Cancel, Cancelled
from foveate.engines.port import EngineEvent, EngineWork, FailEvent
from foveate.engines.process_client import ProcessEngine
from foveate.engines.vllm.config import PIXEL_FAMILIES, VllmConfig
from foveate.engines.vllm.messages import LetGo, NotFetched, Prefill, Prefilled, Receives, Sends, TokenDecode
from foveate.runtime.port import Runtime
from foveate.runtime.settled import settled

ENTRY = "foveate.engines.vllm.process:main"


class Held(msgspec.Struct, frozen=True):
    """K/V of a prompt, and who holds them in which of its lives: they end with it."""

    prefilled: Prefilled
    holder: VllmEngine
    restarts: int

    @property
    def lost(self) -> bool:
        """Whether they are there no more."""
        return not self.holder.ready or self.holder.restarts != self.restarts


class VllmEngine(ProcessEngine):
    """vLLM under Foveate's stages. With a role (``VllmConfig.role``) it prefills for others, or goes on from there."""

    receives = Receives
    sends = Sends

    def __init__(self, runtime: Runtime, config: VllmConfig, **given: Any) -> None:
        """``given`` are :class:`ProcessEngine`'s keyword arguments."""
        super().__init__(runtime, ENTRY, config, **given)
        auto = (AUTO_FEATURE,) if config.tool_call_parser else ()
        self.features = frozenset((*OPTIONAL, "tools", *auto))
        self.encodes = config.encoder
        """Whether its process has a vision encoder at work."""
        if config.family in PIXEL_FAMILIES:
            self.accepts = frozenset({"pixels"})
        self._prefilling: dict[str, asyncio.Future[Prefilled | None]] = {}

    async def prefill(self, work: EngineWork, *, submitted_at: float) -> Held:
        """Have a prompt prefilled, for another process to go on with. Returns or raises only when the pictures are not read any more;
        when it raises, nothing is held. Raises EngineUnavailable, EngineDied, EngineFailed, QueueFull, DeadlineExceeded.
        """
        request_id = work.request_id
        result: asyncio.Future[Prefilled | None] = asyncio.get_running_loop().create_future()
        worker, restarts = self._usable_worker(), self.restarts
        worker.send(Prefill(work, submitted_at))
        self._prefilling[request_id] = result
        self._load.llm_waiting += 1
        found: Prefilled | None = None
        try:
            await asyncio.wait({result}, timeout=max(0.0, work.deadline - now()))
            found = result.result() if result.done() else None
            if found is None:
                raise DeadlineExceeded(detail="the deadline passed in prefill")
            return Held(found, self, restarts)
        finally:
            if not result.done():
                worker.send(Cancel(request_id))
            try:
                await settled(result)
            finally:
                self._load.llm_waiting -= 1
                del self._prefilling[request_id]
                if found is None and result.done() and not result.exception() and result.result() is not None:
                    worker.send(LetGo(request_id))  # it was done in the instant in which it was cancelled

    async def go_on(self, message: TokenDecode) -> AsyncGenerator[EngineEvent, None]:
        """Draw the tokens behind a prompt that another process prefilled; as :meth:`generate`."""
        async with aclosing(self._events(*self._ask(message.work.request_id, message))) as events:
            async for event in events:
                yield event

    def let_go(self, request_id: str) -> None:
        """Have this process give up what it holds of a request's prompt. Raises EngineUnavailable."""
        self._usable_worker().send(LetGo(request_id))

    def _receive(self, message: Any) -> None:
        match message:
            case Prefilled():
                self._prefilled(message.request_id, message)
            case NotFetched():
                self._load.kv_lost()
            case Cancelled() if message.request_id in self._prefilling:
                self._prefilled(message.request_id, None)
            case FailEvent() if message.request_id in self._prefilling:
                result = self._prefilling[message.request_id]
                if not result.done():
                    result.set_exception(message.error.error())
            case _:
                super()._receive(message)

    def _prefilled(self, request_id: str, found: Prefilled | None) -> None:
        result = self._prefilling.get(request_id)
        if result is not None and not result.done():
            result.set_result(found)

    def _end_open(self, why: str) -> None:
        for result in self._prefilling.values():
            if not result.done():
                result.set_exception(EngineDied(detail=why))
        super()._end_open(why)
