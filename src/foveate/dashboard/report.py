"""What the page shows, as values: taken from the books that other parts keep, joined here and computed nowhere else.

Text and multimodal stay apart, and so do the caches. Nothing of a request's body is in it: lines of the request log are all that is known.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from foveate.core.clock import wall
from foveate.core.stages import STAGES, Modality
from foveate.journey.cache_port import CachesReport
from foveate.journey.port import Service
from foveate.observe.metrics import Metrics
from foveate.observe.recent import KEPT_SECONDS, QUANTILES, SLOT_SECONDS, Slot
from foveate.observe.request_line import RequestLine
from foveate.observe.slo import SloReport
from foveate.observe.waterfall import Bar, waterfall


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """One of the slowest requests. ``stage`` is where most of the time before its first token went (``unattributed``: nowhere named).

    ``facts`` are what it carried and took, those that are not zero; ``hosts`` where its items were fetched from, by index, and ``found``
    what spared the work on them. Bars and ``window_ms`` are its waterfall (:class:`foveate.observe.waterfall.Waterfall`).
    """

    id: str
    time: str
    model: str
    tenant: str
    tier: str
    outcome: str
    error: str | None
    ttft_ms: float | None
    total_ms: float
    unattributed_ms: float
    stage: str
    facts: dict[str, float]
    hosts: dict[int, str]
    found: dict[int, str]
    bars: tuple[Bar, ...]
    window_ms: float
    items_omitted: int


class Part(msgspec.Struct, frozen=True):
    """One modality's last half hour: all of it as one slot, slot by slot, and its slowest requests."""

    whole: Slot
    slots: tuple[Slot, ...]
    slowest: tuple[Slow, ...]


class Queue(msgspec.Struct, frozen=True):
    """Something that requests wait for: how many do, how much of it is taken, and of how much (null: no bound is known)."""

    name: str
    waiting: float | None
    taken: float
    capacity: float | None
    unit: str


class Devices(msgspec.Struct, frozen=True):
    """Resident bytes of each kind of process, and of each GPU its utilisation (0..1) and its memory in bytes, used and whole."""

    memory: dict[str, float]
    gpus: dict[str, tuple[float, float, float]]


class DashboardData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page. ``at`` is in Unix seconds. ``observing`` is false where requests are not observed.

    ``rejections`` and ``errors`` count since the start, by limit and by code, ``fetches`` by outcome, ``requests`` by modality and outcome,
    ``forbidden`` by the URL policy's rule.
    """

    at: float
    models: tuple[str, ...]
    ready: bool
    reason: str
    observing: bool
    slot_seconds: float
    slowest_seconds: float
    quantiles: tuple[float, ...]
    stages: tuple[str, ...]
    modalities: dict[Modality, Part]
    queues: tuple[Queue, ...]
    caches: CachesReport
    rejections: dict[str, float]
    errors: dict[str, float]
    fetches: dict[str, float]
    requests: dict[str, dict[str, float]]
    forbidden: dict[str, float]
    slo: SloReport
    devices: Devices


_FACTS = (
    "images",
    "videos",
    "frames",
    "pixels",
    "media_bytes",
    "visual_tokens",
    "text_tokens",
    "output_tokens",
    "cached_tokens",
    "encoder_cache_hits",
    "processor_cache_hits",
    "shared",
    "fetch_bytes",
    "media_cpu_ms",
    "processor_cpu_ms",
    "encoder_ms",
    "engine_token_ms",
    "cache_saved_ms",
    "tpot_ms",
    "prefill_overlap_ms",
)


def read_devices(metrics: Metrics) -> Devices:
    """Ask the system. Takes some milliseconds, so call it from a thread."""
    busy, used, whole = (
        _by_one(metrics.values(f"foveate_gpu_{what}")) for what in ("utilisation", "memory_used_bytes", "memory_bytes")
    )
    gpus = {gpu: (share, used[gpu], whole[gpu]) for gpu, share in busy.items() if gpu in used and gpu in whole}
    return Devices(_by_one(metrics.values("foveate_process_resident_bytes")), gpus)


def report(service: Service, devices: Devices) -> DashboardData:
    """Return what the page shows now. Takes some milliseconds at most, whatever the load. Raises EngineUnavailable while loading."""
    observed, readiness = service.observed(), service.readiness()
    metrics = observed.metrics
    recent = observed.recent.report()
    requests: dict[str, dict[str, float]] = {}
    for (modality, outcome), number in metrics.values("foveate_requests_total").items():
        requests.setdefault(modality, {})[outcome] = number
    return DashboardData(
        at=wall(),
        models=service.models,
        ready=readiness.ready,
        reason=readiness.reason,
        observing=observed.on,
        slot_seconds=SLOT_SECONDS,
        slowest_seconds=KEPT_SECONDS,
        quantiles=QUANTILES,
        stages=STAGES,
        modalities={
            name: Part(each.whole, each.slots, tuple(slow(line) for line in each.slowest))
            for name, each in recent.items()
        },
        queues=_queues(metrics),
        caches=service.caches().report(),
        rejections=_by_one(metrics.values("foveate_budget_rejections_total")),
        errors=_by_one(metrics.values("foveate_errors_total")),
        fetches=_by_one(metrics.values("foveate_fetches_total")),
        requests=requests,
        forbidden=_by_one(metrics.values("foveate_policy_refusals_total")),
        slo=observed.objectives.report(),
        devices=devices,
    )


def slow(line: RequestLine) -> Slow:
    """Return what the list and the waterfall show of one request."""
    made = waterfall(line)
    named = {stage: getattr(line, f"{stage}_ms") for stage in STAGES}
    spent: dict[str, float] = {stage: ms for stage, ms in named.items() if isinstance(ms, float | int)}
    spent["unattributed"] = line.unattributed_ms
    facts = {name: getattr(line, name) for name in _FACTS}
    return Slow(
        id=line.id,
        time=line.time,
        model=line.model,
        tenant=line.tenant,
        tier=line.tier,
        outcome=line.outcome,
        error=line.error,
        ttft_ms=line.ttft_ms,
        total_ms=line.total_ms,
        unattributed_ms=line.unattributed_ms,
        stage=max(spent, key=spent.__getitem__),
        facts={name: value for name, value in facts.items() if value},
        hosts={item.index: item.host for item in line.items if item.host},
        found={item.index: item.found for item in line.items if item.found},
        bars=made.bars,
        window_ms=made.window_ms,
        items_omitted=line.items_omitted,
    )


def _queues(metrics: Metrics) -> tuple[Queue, ...]:
    def of(name: str) -> float:
        return sum(metrics.values(f"foveate_{name}").values())

    in_flight = (
        Queue(f"in flight: {words}", None, of(f"in_flight_{what}"), of(f"in_flight_{what}_capacity"), unit)
        for what, words, unit in (
            ("media_bytes", "media", "bytes"),
            ("pixels", "pixels", "pixels"),
            ("visual_tokens", "visual tokens", "tokens"),
        )
    )
    return (
        Queue("admission, multimodal", of("admission_waiting"), of("admission_places_taken"), None, "requests"),
        Queue("media workers", of("media_queue_length"), of("media_workers_busy"), of("media_workers"), "jobs"),
        Queue("vision encoders", of("encoder_queue_length"), of("encoders_busy"), None, "busy"),
        Queue("language model", of("llm_waiting"), of("llm_running"), None, "running"),
        Queue("servers behind", of("upstream_waiting"), of("upstream_in_flight"), None, "requests"),
        Queue("under way, text and multimodal", None, of("requests_in_flight"), None, "requests"),
        *in_flight,
        Queue("arena", None, of("arena_used_bytes"), of("arena_capacity_bytes"), "bytes"),
    )


def _by_one(values: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    return {labels[0]: number for labels, number in values.items()}
