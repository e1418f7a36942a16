"""What the embedded engine's process is configured with."""

from __future__ import annotations

import msgspec


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
