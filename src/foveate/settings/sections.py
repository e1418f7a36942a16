"""What settings there are, by section."""

from __future__ import annotations

from typing import Literal, get_args

from foveate.decisions.eviction import PolicyName
from foveate.settings.declare import (
    Bytes,
    ClassName,
    Cpus,
    Device,
    Formats,
    GiB,
    KiB,
    MiB,
    Names,
    PictureFormat,
    Ports,
    Section,
    setting,
)


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
        (), "Cores that engine processes run on, dealt out among them in turn, comma-separated. Default: any."
    )
    threads: int = setting(
        0, "Threads for numerical work in each engine process; 0: one per core but one, split between them.", low=0, high=1024,
    )  # fmt: skip


class MediaSettings(Section):
    """Media workers, and how pictures are read. What a request's media may cost: multimodal_budget."""

    workers: int = setting(0, "Media worker processes; 0: one per core but one, at most 8.", low=0, high=256)
    cpus: Cpus = setting((), "Cores that media workers may run on, comma-separated. Default: any.")
    queue_depth_max: int = setting(
        512,
        "Pictures that may wait for a media worker before 429; of one tenant three quarters of them.",
        low=1,
        high=65536,
    )
    job_seconds_max: float = setting(20.0, "Time one picture may take to decode and process.", low=0.1, high=600)
    worker_memory_bytes_max: Bytes = setting(
        2 * GiB, "Memory a media worker may allocate beyond its own code.", low=64 * MiB
    )
    decode_pixels_max: int = setting(
        128_000_000, "Decoded pixels of one picture, whatever its tier says and even where a tier makes it fit.", low=1
    )
    animation_frames_max: int = setting(
        1000, "Frames an animated picture may have; only the first is decoded.", low=1, high=2000
    )
    formats: Formats = setting(
        get_args(PictureFormat),
        "Picture formats that are accepted, of these, comma-separated. Others are answered with 415.",
    )
    background: str = setting("#ffffff", "Colour (#rrggbb) behind transparent pixels.", pattern=r"^#[0-9A-Fa-f]{6}$")
    icc_to_srgb: bool = setting(False, "Convert pictures with an embedded ICC profile to sRGB.")
    client_embeddings: bool = setting(
        False, "Accept embeddings that clients computed themselves (image_embeds parts) in place of pictures."
    )
    truncated_accepted: bool = setting(
        False, "Decode pictures whose data end early as far as they go, instead of refusing them with 422."
    )


class FetchSettings(Section):
    """Media URLs: what may be contacted, and for how long."""

    http_allowed: bool = setting(False, "Also fetch plain http:// URLs, not only https://.", reloads=True)
    private_networks: Names = setting(
        (), "Networks (CIDR) that may be fetched from although they are not public, comma-separated.", reloads=True
    )
    hosts: Names = setting(
        (), "Hosts (exact, or *.example.com) that may resolve to non-public addresses, comma-separated.", reloads=True
    )
    only_hosts: Names = setting(
        (), "When given, the only hosts (exact, or *.example.com) that may be fetched from, comma-separated.",
        reloads=True,
    )  # fmt: skip
    ports: Ports = setting((), "TCP ports that may be fetched from besides 80 and 443, comma-separated.", reloads=True)
    file_root: str | None = setting(
        None,
        "Directory below which file:// URLs may name media. Default: no local file is ever opened.",
        reloads=True,
        path=True,
    )
    proxy: str | None = setting(
        None, "Proxy (http://host:port) that fetches go through. Proxy variables of the environment are never used."
    )
    dns_servers: Names = setting(
        (), "Name servers (address or address:port) to ask instead of the system's resolver, comma-separated."
    )
    dns_seconds: float = setting(2.0, "Time to resolve a host name, per hop.", low=0.05, high=300)
    connect_seconds: float = setting(3.0, "Time to connect, TLS included, per hop.", low=0.05, high=300)
    first_byte_seconds: float = setting(
        10.0, "Time from the request to the answer's first byte, per hop.", low=0.05, high=300
    )
    read_seconds: float = setting(5.0, "Longest silence while reading.", low=0.05, high=300)
    total_seconds: float = setting(20.0, "Time for one picture with all its hops and its retry.", low=0.05, high=600)
    concurrency_max: int = setting(64, "Fetches at once.", low=1, high=4096)
    per_host_max: int = setting(16, "Fetches at once from one host.", low=1, high=4096)
    per_tenant_max: int | None = setting(
        None, "Fetches at once for one tenant. Default: three quarters of fetch.concurrency_max.", low=1, high=4096
    )
    waiting_max: int = setting(
        4096,
        "Fetches that may wait for their turn before 429; of one tenant three quarters of them.",
        low=1,
        high=65536,
    )
    dead_host_failures: int = setting(
        5, "Failures in a row after which a host counts as dead; 0: hosts are never given up.", low=0, high=10_000
    )
    dead_host_seconds: float = setting(
        10.0, "How long fetches from a dead host are refused at once before one tries it again.", low=0.1, high=3600
    )
    user_agent: str = setting("foveate/{version}", "User-Agent sent to origins; {version} is filled in.")


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


class ObserveSettings(Section):
    """Whether what becomes of each request is observed at all (docs/performance.md tells what that costs)."""

    requests: Literal["on", "off"] = setting(
        "on",
        "off: no stages, Server-Timing, request log, traces, costs, objectives or dashboard; /metrics counts requests by outcome only.",
        flag="--observe",
    )


class CostSettings(Section):
    """Prices, in any one currency, that turn what requests took into money (docs/cost.md). 0: not priced."""

    cpu_hour: float = setting(0.0, "Price of an hour of one processor core of media workers.", low=0)
    encoder_gpu_hour: float = setting(0.0, "Price of an hour of the vision encoder's device.", low=0)
    llm_gpu_hour: float = setting(0.0, "Price of an hour of the language model's device.", low=0)
    egress_gb: float = setting(0.0, "Price of 10^9 bytes fetched from media origins.", low=0)


class TextSlo(Section):
    """Targets of text requests."""

    ttft_p95_ms: float | None = setting(None, "Time to first token that 95 of 100 text requests must keep.", low=0.1)
    tpot_p95_ms: float | None = setting(None, "Time per output token that 95 of 100 text requests must keep.", low=0.1)


class MultimodalSlo(Section):
    """Targets of requests with media."""

    ttft_p95_ms: float | None = setting(None, "As for text, of requests with pictures or videos.", low=0.1)
    tpot_p95_ms: float | None = setting(None, "As for text, of requests with pictures or videos.", low=0.1)


class SloSettings(Section):
    """Service-level objectives, text and multimodal apart (docs/slo.md). Default: none."""

    text: TextSlo = TextSlo()
    multimodal: MultimodalSlo = MultimodalSlo()


class TraceSettings(Section):
    """OpenTelemetry traces (docs/traces.md)."""

    otlp_endpoint: str | None = setting(
        None, "Where spans are sent by OTLP over HTTP, such as http://collector:4318/v1/traces. Default: nowhere.",
        pattern=r"^https?://\S+$",
    )  # fmt: skip
    sample_rate: float = setting(
        1.0, "Share of traces that are recorded where the caller's traceparent does not decide.", low=0, high=1
    )


class LogSettings(Section):
    """Logs. The request log is one JSON line a request and is separate from the server's own log."""

    format: Literal["text", "json"] = setting("text", "Form of the server's log on stderr.")
    level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severe line written.")
    requests: str = setting("stdout", "Request log: stdout, off, or a file's path.")
    rotate_bytes: Bytes = setting(
        64 * MiB, "Request log: bytes of a file before the next one is begun (FILE becomes FILE.1).", low=4 * KiB
    )
    keep_files: int = setting(
        8, "Request log: earlier files that are kept; it takes at most (1 + this) × log.rotate_bytes.", low=0, high=1000
    )
