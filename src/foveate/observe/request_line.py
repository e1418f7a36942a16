"""What the request log says of a request: counts and durations only, nothing of a request's body."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from foveate.core.stages import Stage
from foveate.observe.records import Arrival, Counts, ItemRecord, LedgerRecord
from foveate.observe.redact import redact_text
from foveate.observe.spending import QUANTITIES, Spent

ITEMS_MAX: Final = 3
LINE_BYTES_MAX: Final = 2046
"""With its end of line below 2 KiB: half of what Linux writes to a pipe in one piece (PIPE_BUF), so lines of several writers never mix."""
NAME_MAX: Final = 96
HOST_MAX: Final = 64
TENANT_MAX: Final = 64
_NO_ARRIVAL: Final = Arrival()
_ENCODER: Final = msgspec.json.Encoder()


class ItemLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One picture or video in a line: its own durations, whether or not it was on the critical path.

    What did not happen is absent. ``starts_ms`` says when the stages that are there first began, in the order of the fields, counted
    from the request's arrival; a stage may have paused in between (a video's groups of frames). ``redirects`` to ``partial_bytes`` say how
    far a fetch came (:class:`foveate.observe.records.Arrival`), ``found`` and what follows what spared the work and what it took
    (:class:`foveate.observe.records.ItemRecord`). ``source``: its bytes came out of the media cache, as they were (``cache``) or after its
    origin was asked (``revalidated``).
    """

    index: int
    ready_ms: float | None = None
    starts_ms: list[float] = []
    media_fetch_ms: float | None = None
    media_decode_ms: float | None = None
    mm_processor_ms: float | None = None
    encoder_queue_ms: float | None = None
    vision_encode_ms: float | None = None
    embedding_transfer_ms: float | None = None
    host: str | None = None
    redirects: int = 0
    retries: int = 0
    partial_bytes: int | None = None
    found: str | None = None
    fetch_bytes: int | None = None
    media_cpu_ms: float | None = None
    processor_cpu_ms: float | None = None
    encoder_ms: float | None = None
    cache_saved_ms: float | None = None
    source: str | None = None


class UpstreamLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server behind this one that answered, and what it said of the request itself (vLLM: ``--enable-per-request-metrics``)."""

    name: str
    queue_ms: float | None = None
    prefill_ms: float | None = None


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log.

    Every field but ``upstream``, ``upstream_ms`` and those of ``prefill_overlap`` is always there; a stage that did not happen, or a time
    that does not exist, is null. The defaults are for reading lines of earlier versions, which had fewer fields.

    ``time`` is when the request ended (ISO 8601, UTC). Durations are milliseconds; where there was a first token, the
    stages and ``unattributed_ms`` add up to ``ttft_ms`` to the digit. ``error`` and ``limit_name`` say why it was not
    answered, or, where it was only estimated, the first reason why it would not be. The counts, from ``images`` to
    ``adjustments``, are those of :class:`foveate.observe.records.Counts`: every quantity that the budget of ``tier`` limits.
    ``version`` is ``stable`` or ``canary`` of a request with media while a new version of the model is on trial, else null.
    ``fetch_bytes`` to ``cache_saved_ms`` are what it took (:class:`foveate.observe.spending.Spent`), items included.
    ``starts_ms`` says when the stages that are not null began, in the order of the fields, counted from the request's arrival, and
    ``critical`` which item's stages they are. ``prefill_overlap_ms`` is prefill that ran before the last picture was ready and so is in no
    stage (:meth:`foveate.observe.ledger.RequestLedger.prefilled_ahead`), ``prefill_overlap_start_ms`` when it began. ``items`` lists at
    most ITEMS_MAX pictures, those that were ready last, and fewer where a line would be longer than LINE_BYTES_MAX; ``items_omitted``
    counts the rest.
    """

    time: str
    id: str
    model: str = ""
    tenant: str = ""
    tier: str = ""
    version: str | None = None
    modality: str
    outcome: str
    error: str | None = None
    limit_name: str | None = None
    admission_ms: float | None = None
    media_fetch_ms: float | None = None
    media_decode_ms: float | None = None
    mm_processor_ms: float | None = None
    encoder_queue_ms: float | None = None
    vision_encode_ms: float | None = None
    embedding_transfer_ms: float | None = None
    llm_queue_ms: float | None = None
    llm_prefill_ms: float | None = None
    upstream_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    unattributed_ms: float = 0.0
    total_ms: float = 0.0
    starts_ms: list[float] = []
    critical: int | None = None
    prefill_overlap_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    prefill_overlap_start_ms: float | msgspec.UnsetType | None = msgspec.UNSET
    images: int = 0
    videos: int = 0
    frames: int = 0
    video_seconds: float = 0.0
    pixels: int = 0
    media_bytes: int = 0
    largest_width: int = 0
    largest_height: int = 0
    largest_item_bytes: int = 0
    fetch_seconds: float = 0.0
    redirects: int = 0
    adjustments: int = 0
    visual_tokens: int = 0
    text_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    encoder_cache_hits: int = 0
    processor_cache_hits: int = 0
    fetches: int = 0
    shared: int = 0
    fetch_bytes: int = 0
    media_cpu_ms: float = 0.0
    processor_cpu_ms: float = 0.0
    encoder_ms: float = 0.0
    engine_token_ms: float = 0.0
    cache_saved_ms: float = 0.0
    upstream: UpstreamLine | msgspec.UnsetType = msgspec.UNSET
    items: list[ItemLine] = []
    items_omitted: int = 0


def line(record: LedgerRecord, wall: float, *, items_max: int = ITEMS_MAX) -> RequestLine:
    """Return a record's line, with ``items_max`` items. ``wall`` is when the request ended, in seconds since the epoch."""
    stages, ttft_ms, unattributed_ms = record.breakdown.rounded()
    tpot_ms = record.breakdown.tpot_ms
    counts = record.counts
    return RequestLine(
        time=_moment(wall),
        # Both may have come from the client.
        id=redact_text(record.request_id[:NAME_MAX]),
        model=redact_text(record.model[:NAME_MAX]),
        tenant=record.tenant[:TENANT_MAX],
        tier=record.tier[:TENANT_MAX],
        version=record.role,
        modality=record.modality,
        outcome=record.outcome,
        error=record.error_code,
        limit_name=record.limit_name,
        admission_ms=stages.get("admission"),
        media_fetch_ms=stages.get("media_fetch"),
        media_decode_ms=stages.get("media_decode"),
        mm_processor_ms=stages.get("mm_processor"),
        encoder_queue_ms=stages.get("encoder_queue"),
        vision_encode_ms=stages.get("vision_encode"),
        embedding_transfer_ms=stages.get("embedding_transfer"),
        llm_queue_ms=stages.get("llm_queue"),
        llm_prefill_ms=stages.get("llm_prefill"),
        upstream_ms=stages.get("upstream", msgspec.UNSET),
        tpot_ms=None if tpot_ms is None else round(tpot_ms, 3),
        ttft_ms=ttft_ms,
        unattributed_ms=unattributed_ms,
        total_ms=round(record.breakdown.total_ms, 3),
        starts_ms=_rounded(record.breakdown.starts),
        critical=record.breakdown.critical,
        **_overlap(record),
        images=counts.images,
        videos=counts.videos,
        frames=counts.frames,
        video_seconds=round(counts.video_seconds, 3),
        pixels=counts.pixels,
        media_bytes=counts.media_bytes,
        largest_width=counts.largest_width,
        largest_height=counts.largest_height,
        largest_item_bytes=counts.largest_item_bytes,
        fetch_seconds=round(counts.fetch_seconds, 3),
        redirects=counts.redirects,
        adjustments=counts.adjustments,
        visual_tokens=counts.visual_tokens,
        text_tokens=counts.text_tokens,
        output_tokens=counts.output_tokens,
        cached_tokens=counts.cached_tokens,
        encoder_cache_hits=counts.encoder_cache_hits,
        processor_cache_hits=counts.processor_cache_hits,
        fetches=counts.fetches,
        shared=counts.shared,
        **_spent(record.spent),
        upstream=_upstream(counts),
        items=[_item(item) for item in _last_ready(record.items, items_max)],
        items_omitted=max(len(record.items) - items_max, 0),
    )


def _moment(wall: float) -> str:
    milliseconds = int(wall * 1e3)
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@lru_cache(maxsize=2)
def _second(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _overlap(record: LedgerRecord) -> dict[str, Any]:
    if record.breakdown.overlap_ms is None:
        return {}
    start_ms = (record.ahead[0].start - record.received_at) * 1e3
    return {
        "prefill_overlap_ms": round(record.breakdown.overlap_ms, 3),
        "prefill_overlap_start_ms": round(start_ms, 3),
    }


def _upstream(counts: Counts) -> UpstreamLine | msgspec.UnsetType:
    if not counts.upstream:
        return msgspec.UNSET
    queue_ms, prefill_ms = counts.upstream_queue_ms, counts.upstream_prefill_ms
    return UpstreamLine(
        counts.upstream[:HOST_MAX],
        None if queue_ms is None else round(queue_ms, 3),
        None if prefill_ms is None else round(prefill_ms, 3),
    )


def _last_ready(items: Sequence[ItemRecord], number: int) -> list[ItemRecord]:
    """Return the pictures that a slow request waited for, in prompt order: a line must stay short, and they explain it."""
    latest = sorted(items, key=lambda item: math.inf if item.ready_ms is None else item.ready_ms, reverse=True)[:number]
    return sorted(latest, key=lambda item: item.index)


def _item(item: ItemRecord) -> ItemLine:
    def ms(stage: Stage) -> float | None:
        value = item.stages.get(stage)
        return None if value is None else round(value, 3)

    arrival = item.arrival or _NO_ARRIVAL
    return ItemLine(
        index=item.index,
        ready_ms=None if item.ready_ms is None else round(item.ready_ms, 3),
        starts_ms=_rounded(item.starts),
        media_fetch_ms=ms("media_fetch"),
        media_decode_ms=ms("media_decode"),
        mm_processor_ms=ms("mm_processor"),
        encoder_queue_ms=ms("encoder_queue"),
        vision_encode_ms=ms("vision_encode"),
        embedding_transfer_ms=ms("embedding_transfer"),
        host=item.host[:HOST_MAX] if item.host else None,
        redirects=arrival.redirects,
        retries=arrival.retries,
        partial_bytes=arrival.partial_bytes,
        found=item.found,
        fetch_bytes=item.spent.fetch_bytes or None,
        media_cpu_ms=round(item.spent.media_cpu_ms, 3) or None,
        processor_cpu_ms=round(item.spent.processor_cpu_ms, 3) or None,
        encoder_ms=round(item.spent.encoder_ms, 3) or None,
        cache_saved_ms=round(item.spent.cache_saved_ms, 3) or None,
        source=item.source,
    )


def _spent(spent: Spent) -> dict[str, Any]:
    return {name: round(getattr(spent, name), 3) for name in QUANTITIES}


def _rounded(starts: dict[Stage, float]) -> list[float]:
    return [round(ms, 3) for ms in starts.values()]


def encoded(record: LedgerRecord, wall: float) -> bytes:
    """Return a record's line as JSON, without its end of line, in LINE_BYTES_MAX bytes: items give way to keep a line short."""
    made = line(record, wall)
    data = _ENCODER.encode(made)
    while len(data) > LINE_BYTES_MAX and made.items:
        # The earliest of them explains the least of the wait.
        least = min(made.items, key=lambda item: math.inf if item.ready_ms is None else item.ready_ms)
        kept = [item for item in made.items if item is not least]
        made = msgspec.structs.replace(made, items=kept, items_omitted=made.items_omitted + 1)
        data = _ENCODER.encode(made)
    return data
