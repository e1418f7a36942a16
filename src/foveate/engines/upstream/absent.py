"""What stands where an engine and an encoder would, in a server whose engines are other servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from foveate.core.errors import EngineUnavailable, EngineUnknown
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot
from foveate.encoders.port import UNKNOWN, Purpose
from foveate.engines.arrivals import Arrivals
from foveate.engines.port import EngineEvent, EngineInfo, EngineReport, EngineWork, Form, Relay


class NoEngine:
    """:class:`foveate.engines.port.Engine` and :class:`~foveate.engines.port.Encoder` of a server that has neither.

    It is as ready as the relay is; no step of a relayed request asks it for anything.
    """

    features: frozenset[str] = frozenset()
    accepts: frozenset[Form] = frozenset({"bytes", "url"})

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.restarts = 0

    @property
    def ready(self) -> bool:
        """Whether any upstream can be asked now."""
        return self._relay.ready

    @property
    def info(self) -> EngineInfo:
        """Nothing is known of an encoder here."""
        return EngineInfo("", "none", 0, 0)

    async def start(self) -> None:
        """Nothing is to be loaded."""

    def generate(self, work: EngineWork, arrivals: Arrivals | None = None) -> AsyncGenerator[EngineEvent, None]:
        """Raises EngineUnavailable."""
        raise EngineUnavailable(detail="there is no engine here, only upstreams")

    def report(self) -> tuple[EngineReport, ...]:
        """One that is as usable as the upstreams are; what they have to do is told of each of them."""
        return (EngineReport("0", self.ready, 0, 0, 0.0),)

    def drain(self, name: str, *, draining: bool) -> EngineReport:
        """Raises EngineUnknown."""
        raise EngineUnknown

    async def encode(
        self, prepared: PreparedImage, out: Slot, *, deadline: float, purpose: Purpose = UNKNOWN
    ) -> EncodedImage:
        """Raises EngineUnavailable."""
        raise EngineUnavailable(detail="there is no encoder here, only upstreams")

    async def stop(self, *, seconds_max: float) -> None:
        """Nothing is to be ended."""
