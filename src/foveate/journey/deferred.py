"""The service while its inside still loads: the port is open, ``/health`` says the process is up, ``/ready`` says what it waits for, and
whatever asks for more is told to come back.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from foveate.core.budget import Caller
from foveate.core.errors import EngineUnavailable, FoveateError
from foveate.core.request import Request
from foveate.engines.port import EngineReport, RelayReport
from foveate.journey.cache_port import CacheOperator
from foveate.journey.canary_port import CanaryOperator
from foveate.journey.port import (
    Answer,
    BodyBuffer,
    Estimate,
    Readiness,
    Reloaded,
    RulesInForce,
    Service,
    Terms,
    Unpacked,
)
from foveate.journey.topology_port import TopologyOperator
from foveate.observe.observer import Observer


class Deferred:
    """Implements :class:`foveate.journey.port.Service` by the one that :meth:`become` gives it."""

    def __init__(self, *, model: str, body_bytes_max: int, inline_bytes_min: int) -> None:
        self._model = model
        self.body_bytes_max = body_bytes_max
        self.inline_bytes_min = inline_bytes_min
        self.relays = False
        self._service: Service | None = None

    def become(self, service: Service) -> None:
        """Answer by ``service`` from now on."""
        self.relays = service.relays
        self._service = service

    @property
    def models(self) -> tuple[str, ...]:
        """See the port."""
        return (self._model,) if self._service is None else self._service.models

    @property
    def context_tokens_max(self) -> int:
        """See the port."""
        return 0 if self._service is None else self._service.context_tokens_max

    def readiness(self) -> Readiness:
        """See the port."""
        return Readiness(False, "loading") if self._service is None else self._service.readiness()

    def caller(self, key: str | None, tier: str | None) -> Caller:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().caller(key, tier)

    def terms(self, caller: Caller) -> Terms:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().terms(caller)

    def rules(self) -> RulesInForce:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().rules()

    async def reload(self) -> Reloaded:
        """See the port. Raises EngineUnavailable while loading."""
        return await self._loaded().reload()

    def upstreams(self) -> tuple[RelayReport, ...]:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().upstreams()

    def drain_upstream(self, name: str, *, draining: bool) -> RelayReport:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().drain_upstream(name, draining=draining)

    def engines(self) -> tuple[EngineReport, ...]:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().engines()

    def drain_engine(self, name: str, *, draining: bool) -> EngineReport:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().drain_engine(name, draining=draining)

    def caches(self) -> CacheOperator:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().caches()

    def observed(self) -> Observer:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().observed()

    def canary(self) -> CanaryOperator:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().canary()

    def topology(self) -> TopologyOperator:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().topology()

    def body(self, bytes_max: int, caller: Caller) -> AbstractAsyncContextManager[BodyBuffer]:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().body(bytes_max, caller)

    def unpack(self, buffer: BodyBuffer) -> AbstractAsyncContextManager[Unpacked]:
        """See the port."""
        return self._loaded().unpack(buffer)

    def refused(self, request_id: str, received_at: float, error: FoveateError, caller: Caller | None) -> None:
        """See the port. While loading there is nothing yet to record it in."""
        if self._service is not None:
            self._service.refused(request_id, received_at, error, caller)

    def answer(self, request: Request, unpacked: Unpacked | None) -> AbstractAsyncContextManager[Answer]:
        """See the port. Raises EngineUnavailable while loading."""
        return self._loaded().answer(request, unpacked)

    async def estimate(self, request: Request, unpacked: Unpacked | None) -> Estimate:
        """See the port. Raises EngineUnavailable while loading."""
        return await self._loaded().estimate(request, unpacked)

    async def metrics(self) -> tuple[bytes, str]:
        """See the port. Raises EngineUnavailable while loading."""
        return await self._loaded().metrics()

    def _loaded(self) -> Service:
        if self._service is None:
            raise EngineUnavailable("The model is still loading. Try again shortly.", retry_after_seconds=2.0)
        return self._service
