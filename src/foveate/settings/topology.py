"""Settings of the topology: which stages run in processes of their own, how many, and where."""

from __future__ import annotations

from typing import Literal

from foveate.settings.declare import Bytes, Cpus, Device, MiB, Section, setting

ENCODERS_MAX = 64


class TopologySettings(Section):
    """Where the vision encoder, prefill and token decode run (docs/topology.md). The API and the answers are the same in every topology."""

    kind: Literal["agg", "e-pd", "e-p-d"] = setting(
        "agg",
        "agg: the vision encoder runs in the engine's process. e-pd: in encode workers, processes of their own. e-p-d: prefill and "
        "token decode in processes of their own too.",
        flag="--topology",
    )  # fmt: skip
    encoders: int = setting(1, "Encode workers with e-pd and e-p-d.", flag="--encoders", low=1, high=ENCODERS_MAX)
    encoders_max: int | None = setting(
        None, "Up to how many encode workers there may be: their number then follows topology.target_queue_ms. Default: it is fixed.",
        low=1, high=ENCODERS_MAX,
    )  # fmt: skip
    target_queue_ms: float = setting(
        100.0, "How long pictures may wait for an encode worker before there are more of them.", low=1, high=60_000
    )
    encoder_device: Device | None = setting(
        None, "Where an encode worker's weights live: cpu, cuda or cuda:N. Default: model.device."
    )
    encoder_threads: int = setting(
        0, "Threads for numerical work in each encode worker; 0: its cores; without topology.encoder_cpus the cores but one, shared out "
        "among them.",
        low=0, high=1024,
    )  # fmt: skip
    encoder_cpus: Cpus = setting(
        (), "Cores that encode workers run on, dealt out among them in turn: 0,1 or 4-7. Default: any."
    )
    prefill: int = setting(1, "Prefill workers with e-p-d.", flag="--prefill-workers", low=1, high=64)
    decode: int = setting(1, "Token-decode workers with e-p-d.", flag="--decode-workers", low=1, high=64)
    prefill_device: Device | None = setting(
        None, "Where a prefill worker's weights live: cpu, cuda or cuda:N. Default: model.device."
    )
    decode_device: Device | None = setting(
        None, "Where a token-decode worker's weights live: cpu, cuda or cuda:N. Default: model.device."
    )
    prefill_threads: int = setting(
        0, "Threads for numerical work in each prefill worker; 0: its cores; without topology.prefill_cpus the cores but one, shared out "
        "among prefill and decode workers.",
        low=0, high=1024,
    )  # fmt: skip
    decode_threads: int = setting(0, "As topology.prefill_threads, of each token-decode worker.", low=0, high=1024)
    prefill_cpus: Cpus = setting(
        (), "Cores that prefill workers run on, dealt out among them in turn: 0,1 or 4-7. Default: any."
    )
    decode_cpus: Cpus = setting((), "As topology.prefill_cpus, of token-decode workers.")
    kv_bytes_max: Bytes = setting(
        256 * MiB,
        "With e-p-d and the embedded engine, room in the arena, beside limits.arena_bytes_max, for K/V of prompts between prefill and "
        "token decode. It takes no memory until it is used.",
        low=MiB,
    )
    fallback: Literal["local", "off"] = setting(
        "local",
        "What encodes while no encode worker can: local, the engine's process, which holds the vision tower too; off: nobody, and "
        "requests with pictures are answered with 503.",
    )
    hang_seconds: float = setting(
        1.5, "How long an encode worker may answer nothing at all before it is killed and replaced.", low=0.5, high=600
    )
    encode_seconds_max: float = setting(
        60.0, "Time one batch may take in an encode worker before it is killed and replaced.", low=0.5, high=3600
    )
