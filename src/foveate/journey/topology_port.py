"""What an operator may ask of the topology: the part of the service behind ``/admin/topology``."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from foveate.encoders.seat import EncoderReport

Kind = Literal["agg", "e-pd", "e-p-d"]


class TopologyReport(msgspec.Struct, frozen=True):
    """Where the vision encoder runs. ``encoders``: how many encode workers each version of the model is to have.

    ``encoders_max``: up to how many their number follows the queue by itself; 0: it does not. ``waiting`` pictures are in the line before
    them. ``local``: the engine's process can encode where no worker does, and did so for ``local_pictures``. ``workers`` are those of all
    versions."""

    kind: Kind
    encoders: int
    waiting: int
    local: bool
    local_pictures: int
    workers: tuple[EncoderReport, ...]
    encoders_max: int = 0


class TopologyOperator(Protocol):
    """What an operator may do. One implementation (:class:`foveate.journey.topology.Topologies`)."""

    def report(self) -> TopologyReport:
        """Return what there is now."""
        ...

    async def set(self, kind: Kind, encoders: int) -> TopologyReport:
        """Have so many encode workers, none with ``agg``; return when they are there. No request fails by it.

        From then on the number does not follow the queue any more. Whether prefill and token decode are apart is a matter of the start.
        Raises TopologyRefused."""
        ...
