"""Messages between the gateway and a process that holds a vision tower, and what an encode worker is configured with."""

from __future__ import annotations

import msgspec

from foveate.core.errors import ErrorRecord
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot
from foveate.runtime.pulse import Ping, Pong


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


class EncodeBatch(msgspec.Struct, frozen=True, tag="encode_batch"):
    """Encode these together, as far as their shapes allow: the gateway chose them. Each is answered for itself."""

    works: tuple[Encode, ...]


class EncoderConfig(msgspec.Struct, frozen=True):
    """What an encode worker is started with. ``batch_max`` pictures of ``batch_tokens_max`` visual tokens are encoded together at most.

    ``own_encoder`` is the ``package.module:Class`` of an operator's own vision encoder; empty: the checkpoint's.
    """

    model_dir: str
    device: str = "cpu"
    dtype: str = "float32"
    batch_max: int = 1
    batch_tokens_max: int = 0
    queue_max: int = 1024
    own_encoder: str = ""


class EncoderInfo(msgspec.Struct, frozen=True):
    """What an encode worker says of its vision tower once it is ready (:class:`foveate.models.port.VisionTower`)."""

    encoder_version: str
    embedding_bytes_per_row: int


WorkerReceives = EncodeBatch | CancelEncode | Ping
WorkerSends = EncodeBegun | EncodeDone | EncodeRejected | Pong
