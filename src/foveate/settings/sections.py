"""The sections of the server itself: where it listens, its model and engine, who may ask, its caches, a model on trial, its limits.

What concerns media, observing, the topology, the runtime, vLLM or upstreams has a module of its own beside this one.
"""

from __future__ import annotations

from typing import Literal

from foveate.decisions.eviction import PolicyName
from foveate.settings.declare import Bytes, ClassName, Cpus, Device, GiB, KiB, MiB, Names, Section, setting


class ServerSettings(Section):
    """Where the server listens and how it ends."""

    host: str = setting("127.0.0.1", "Address to listen on.", flag="--host")
    port: int = setting(8000, "TCP port to listen on; 0 picks a free one.", flag="--port", low=0, high=65535)
    body_bytes_max: Bytes = setting(64 * MiB, "Largest request body accepted.", low=1024)
    inline_bytes_min: Bytes = setting(
        256 * KiB, "Bodies from this size on are parsed by a media worker instead of the gateway.", low=1024
    )
    keep_alive_seconds: int = setting(75, "How long an idle client connection stays open.", low=1, high=3600)
    drain_seconds: float = setting(
        30.0, "After SIGTERM, how long open streams may go on before they are ended.", low=0, high=3600
    )
    request_seconds_max: float = setting(
        300.0, "Deadline of one request, from its last body byte to its last token.", low=0.1, high=86400
    )
    start_seconds_max: float = setting(
        600.0, "How long workers and the engine may take to load before start-up fails.", low=1, high=7200
    )


class ModelSettings(Section):
    """Which model, and how its weights are held."""

    path: str | None = setting(
        None, "Model to serve: a local directory or a hub id. Default: the small model that ships with Foveate.",
        flag="--model",
    )  # fmt: skip
    served_name: str | None = setting(
        None, "Name clients use for the model. Default: the hub id, or the directory's last part.",
        flag="--served-model-name",
    )  # fmt: skip
    encoder: ClassName | None = setting(
        None, "An operator's own vision encoder in place of the model's: package.module:Class (docs/encoder.md).",
        flag="--encoder",
    )  # fmt: skip
    device: Device = setting("cpu", "Where weights live: cpu, cuda or cuda:N.", flag="--device")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "float32", "Weights and computation. float32 gives the same tokens alone and in any batch.", flag="--dtype"
    )


class EngineSettings(Section):
    """Which engine answers, and the limits of one that runs here."""

    kind: Literal["embedded", "vllm", "upstream"] = setting(
        "embedded",
        "embedded: the model runs here. vllm: it runs here in vLLM (docs/vllm.md). upstream: servers behind this one answer "
        "(docs/upstream.md).",
        flag="--engine",
    )  # fmt: skip
    count: int = setting(
        1, "Engine processes, each with a whole model; a request goes to the one that has least to do, or its prompt cached.",
        flag="--engines", low=1, high=64,
    )  # fmt: skip
    queue_depth_max: int = setting(256, "Requests that may wait for the language model before 429.", low=1, high=65536)
    batch_size_max: int = setting(32, "Sequences decoded together.", low=1, high=1024)
    prefill_chunk_tokens: int = setting(
        512, "Prompt tokens prefilled between two token-decode steps of running streams.", low=16, high=65536
    )
    prefill_overlap: bool = setting(
        True,
        "Begin with a prompt while later pictures of it are still encoded. The embedded engine can; others get all pictures at once.",
    )
    kv_tokens_max: int = setting(
        131072, "KV-cache capacity in tokens, over all sequences; a request that does not fit waits.", low=256
    )
    prefix_cache_bytes_max: Bytes = setting(
        64 * MiB,
        "KV of prompts kept, beside engine.kv_tokens_max, for prompts that begin alike (cache.scope tells whose); 0: none.",
        low=0,
    )
    encoder_queue_max: int = setting(
        256, "Pictures that may wait for the vision encoder before 429.", low=1, high=65536
    )
    encoder_batch_max: int = setting(
        1, "Same-shape pictures encoded together; 1 gives the same embedding whatever else is in the queue.", low=1,
        high=256,
    )  # fmt: skip
    encoder_batch_tokens_max: int = setting(
        16384, "Visual tokens of pictures encoded together; a single picture may have more.", low=1
    )
    hang_seconds: float = setting(
        5.0, "How long an engine process may answer nothing at all before it is killed and replaced.", low=0.5, high=600
    )
    step_seconds_max: float = setting(
        120.0,
        "How long one step of the language model, or one batch of the vision encoder beside it, may take before the engine's process "
        "counts as hung and is replaced.",
        low=1,
        high=3600,
    )
    restart_wait_seconds: float | None = setting(
        None, "How long a request without a token waits for an engine that restarts. Default: 4, with vLLM 30.", low=0,
        high=600,
    )  # fmt: skip
    self_check: bool = setting(
        True,
        "With vLLM, or encode workers: compare a picture's embeddings with transformers' own before the server is ready, and do not start "
        "where they differ.",
    )
    cpus: Cpus = setting(
        (), "Cores that engine processes run on, dealt out among them in turn: 0,1 or 4-7. Default: any."
    )
    threads: int = setting(
        0, "Threads for numerical work in each engine process; 0: its cores; without engine.cpus one per core but one, split between them.",
        low=0, high=1024,
    )  # fmt: skip


class AuthSettings(Section):
    """API keys: who may ask, and by which tier. With none configured everybody may, by the default tier."""

    keys_file: str | None = setting(
        None, "YAML or JSON file of API keys, hashed (docs/budgets.md).", reloads=True, path=True
    )
    keys: Names = setting(
        (), "API keys, comma-separated: tenant:tier:sha256:HEX, or tenant:tier:plain:KEY in the environment only.",
        reloads=True,
    )  # fmt: skip


class CacheSettings(Section):
    """The caches that Foveate owns. They share nothing."""

    processor_bytes_max: Bytes = setting(
        128 * MiB, "Processor cache: bytes of model inputs kept; 0 turns it off.", low=0
    )
    processor_policy: PolicyName = setting(
        "lru", "Processor cache: what is evicted first; lru, s3_fifo or gdsf (docs/caches.md tells when which pays)."
    )
    encoder_bytes_max: Bytes = setting(256 * MiB, "Encoder cache: bytes of embeddings kept; 0 turns it off.", low=0)
    encoder_policy: PolicyName = setting("lru", "Encoder cache: what is evicted first; lru, s3_fifo or gdsf.")
    media_bytes_max: Bytes = setting(
        0, "Media cache: bytes of fetched media kept for as long as their origins declare them fresh; 0, the default, is off.",
        low=0,
    )  # fmt: skip
    media_policy: PolicyName = setting("lru", "Media cache: what is evicted first; lru, s3_fifo or gdsf.")
    encoder_keep_dir: str | None = setting(
        None,
        "Directory in which the encoder cache is kept over a restart. Default: it ends with the process.",
        path=True,
    )
    encoder_keep_bytes_max: Bytes = setting(
        512 * MiB, "Disk that it may take there, also while it is replaced.", low=MiB
    )
    encoder_keep_seconds_max: float = setting(
        5.0, "How long reading it at the start may put off being ready, and writing it the end.", low=0.1, high=600
    )
    curve_sample_rate: float = setting(
        1.0, "Share of contents whose look-ups are followed to tell what other capacities would do, at first; 0: none.",
        low=0, high=1,
    )  # fmt: skip
    scope: Literal["shared", "per_tenant"] = setting(
        "shared",
        "Who meets an entry of a cache, or work in flight: every tenant, or only the one whose request made it.",
    )
    bad_media_seconds: float = setting(
        5.0, "How long media that could not be decoded are refused again without another attempt; 0: not at all.",
        low=0, high=60,
    )  # fmt: skip
    aliases_max: int = setting(16384, "Clients' own names for pictures (uuid) remembered.", low=1, high=10_000_000)


class CanarySettings(Section):
    """A new version of the model on trial (docs/canary.md): what it may differ by before it is rolled back by itself."""

    compared_share: float = setting(
        0.2, "Share of contents that both versions encode, to compare the embeddings.", low=0, high=1
    )
    samples_min: int = setting(
        20, "Comparisons, and requests of each version, before means and medians are judged.", low=1, high=1000
    )
    cosine_min: float = setting(
        0.9, "Mean cosine between new and old embeddings below which it is rolled back; -1: whatever it is.", low=-1,
        high=1,
    )  # fmt: skip
    norm_ratio_max: float = setting(2.0, "How many times longer or shorter new embeddings may be on average.", low=1)
    error_ratio_max: float = setting(
        2.0, "How many times the old version's share of errors (1 % at least) the new one's may be, beyond chance.",
        low=1,
    )  # fmt: skip
    latency_ratio_max: float = setting(
        1.5, "How many times the old version's median time to the first token the new one's may be.", low=1
    )


class LimitSettings(Section):
    """How much is under way at once."""

    requests_max: int = setting(
        512, "Requests of text under way at once before 429, and as many each with media and with a body that still arrives.",
        low=1, high=65536,
    )  # fmt: skip
    multimodal_requests_max: int = setting(
        64, "Requests with pictures under way at once; more wait. Text never waits for these places.", low=1, high=65536
    )
    multimodal_waiting_max: int = setting(
        512, "Requests with pictures that may wait for such a place before 429.", low=0, high=65536
    )
    media_bytes_in_flight_max: Bytes = setting(512 * MiB, "Encoded media bytes of all requests under way.", low=1024)
    pixels_in_flight_max: int = setting(1_000_000_000, "Decoded pixels of all requests under way.", low=1)
    visual_tokens_in_flight_max: int = setting(1_048_576, "Visual tokens of all requests under way.", low=1)
    answer_tokens_default: int = setting(
        2048, "Tokens an answer may have when the request names no limit, as far as the context has room.", low=1
    )
    arena_bytes_max: Bytes = setting(
        1 * GiB, "Shared memory for media bytes, model inputs and embeddings (used only as needed).", low=64 * MiB
    )
