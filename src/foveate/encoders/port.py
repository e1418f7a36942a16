"""What the journey asks of a vision encoder, wherever it runs. Every implementation passes ``tests/contracts/test_encoder_contract.py``."""

from __future__ import annotations

from typing import Protocol

import msgspec

from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot


class Purpose(msgspec.Struct, frozen=True):
    """Why a picture is encoded: for which tenant and request, and what names its content. All empty: nobody's.

    Equal ``content`` means equal embeddings. They steer order and place only, never the result.
    """

    tenant: str = ""
    request: str = ""
    content: str = ""


UNKNOWN = Purpose()


class Encoder(Protocol):
    """A vision encoder: in the engine's process when aggregated, in encode workers otherwise."""

    async def encode(
        self, prepared: PreparedImage, out: Slot, *, deadline: float, purpose: Purpose = UNKNOWN
    ) -> EncodedImage:
        """Encode one picture into ``out`` (at least rows x ``embedding_bytes_per_row`` bytes, plus 64 for each level).

        It returns or raises only when nobody uses the slots any more. ``deadline`` is monotonic seconds. Cancelling it before it starts is
        free; later its result is dropped. Raises EncodeFailed, EncodersUnavailable, EngineUnavailable, QueueFull, DeadlineExceeded.
        """
        ...
