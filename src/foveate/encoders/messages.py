"""Messages between the gateway and a process that holds a vision tower."""

from __future__ import annotations

import msgspec

from foveate.core.errors import ErrorRecord
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot


class Encode(msgspec.Struct, frozen=True, tag="encode"):
    """Encode one picture into ``out``. ``submitted_at`` is when the gateway asked: encoder_queue counts from there."""

    job_id: int
    prepared: PreparedImage
    out: Slot
    deadline: float
    submitted_at: float


class CancelEncode(msgspec.Struct, frozen=True, tag="cancel_encode"):
    """Drop a picture. It is answered all the same (the slots are in use until then): at once when it has not
    started."""

    job_id: int


class EncodeBegun(msgspec.Struct, frozen=True, tag="encode_begun"):
    """A batch of these pictures has begun; each is still answered by itself."""

    job_ids: list[int]


class EncodeDone(msgspec.Struct, frozen=True, tag="encode_done"):
    """A picture's embeddings lie in its slot."""

    job_id: int
    image: EncodedImage


class EncodeRejected(msgspec.Struct, frozen=True, tag="encode_rejected"):
    """A picture was not encoded. ``error`` is ``None`` when it was cancelled."""

    job_id: int
    error: ErrorRecord | None
