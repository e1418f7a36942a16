"""What an operator sends to change the topology."""

from __future__ import annotations

from typing import Annotated

import msgspec

from foveate.journey.topology_port import Kind


class TopologySet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``encoders`` is how many encode workers there are to be with ``e-pd`` and ``e-p-d``."""

    kind: Kind
    encoders: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
