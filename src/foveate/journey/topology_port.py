"""What an operator may ask of the topology: the part of the service behind ``/admin/topology``."""

from __future__ import annotations

from typing import Protocol

import msgspec

from foveate.encoders.seat import EncoderReport
from foveate.engines.port import EngineReport
from foveate.observe.records import Topology


class TopologyReport(msgspec.Struct, frozen=True):
    """Where the vision encoder and the language model run. ``encoders``: how many encode workers each version of the model is to have.

    ``encoders_max``: up to how many their number follows the queue by itself; 0: it does not. ``waiting`` pictures are in the line before
    them. ``local``: the engine's process can encode where no worker does, and did so for ``local_pictures``. ``workers`` are those of all
    versions. ``prefill`` and ``decode``: how many processes do one of the two; ``engines`` are those of the version that serves, also such
    as only finish what they have."""

    kind: Topology
    encoders: int
    waiting: int
    local: bool
    local_pictures: int
    workers: tuple[EncoderReport, ...]
    encoders_max: int = 0
    prefill: int = 0
    decode: int = 0
    engines: tuple[EngineReport, ...] = ()


class TopologyOperator(Protocol):
    """What an operator may do. One implementation (:class:`foveate.journey.topology.Topologies`)."""

    def report(self) -> TopologyReport:
        """Return what there is now."""
        ...

    async def set(
        self, kind: Topology, encoders: int | None = None, *, prefill: int | None = None, decode: int | None = None
    ) -> TopologyReport:
        """Have so many encode workers, none with ``agg``, and with ``e-p-d`` so many prefill and token-decode workers; None: as many as
        there are, or as were configured. Returns when new ones are there and requests go by them. No request fails by it.

        From then on the number of encode workers does not follow the queue any more. Raises TopologyRefused."""
        ...
