"""What an operator sends to change the topology."""

from __future__ import annotations

from typing import Annotated

import msgspec

from foveate.observe.records import Topology

Workers = Annotated[int, msgspec.Meta(ge=1, le=64)]


class TopologySet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``encoders`` is how many encode workers there are to be with ``e-pd`` and ``e-p-d``; ``prefill`` and ``decode``, how many prefill and
    token-decode workers with ``e-p-d``. Without: as many as there are, or as were configured.
    """

    kind: Topology
    encoders: Workers | None = None
    prefill: Workers | None = None
    decode: Workers | None = None
