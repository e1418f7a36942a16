"""Settings of what is observed of requests and where it is told: their cost, objectives, traces and both logs. Metrics have none."""

from __future__ import annotations

from typing import Literal

from foveate.settings.declare import Bytes, KiB, MiB, Section, setting


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
