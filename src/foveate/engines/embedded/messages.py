"""What the embedded engine's process is configured with and what it is told. Its answers are ``EngineEvent`` and the
encoder's."""

from __future__ import annotations

import msgspec

from foveate.encoders.messages import CancelEncode, Encode, EncodeDone, EncodeRejected
from foveate.engines.port import EngineWork, FailEvent, FinishEvent, TokenEvent


class EmbeddedConfig(msgspec.Struct, frozen=True):
    """The engine process's configuration; fields are the settings of the same names
    (:class:`foveate.settings.EngineSettings`)."""

    model_dir: str
    model: str
    device: str = "cpu"
    dtype: str = "float32"
    queue_depth_max: int = 256
    batch_size_max: int = 32
    prefill_chunk_tokens: int = 512
    kv_tokens_max: int = 131072
    prefix_cache_bytes_max: int = 0
    encoder_queue_max: int = 256
    encoder_batch_max: int = 1


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Answer a prompt. ``submitted_at`` is when the gateway asked: llm_queue counts from there."""

    work: EngineWork
    submitted_at: float


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Drop a request at once; it is not answered."""

    request_id: str


Receives = Generate | Cancel | Encode | CancelEncode
Sends = TokenEvent | FinishEvent | FailEvent | EncodeDone | EncodeRejected
