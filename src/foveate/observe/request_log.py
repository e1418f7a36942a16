"""The request log: one JSON line a request, for machines.

Counts and durations only; nothing of a request's body goes in.

Lines are encoded and written by one thread behind a bounded queue, so the event loop never waits for a disk or a pipe.
When the writer cannot keep up, or fails, lines are dropped and counted; the loss is reported in Foveate's own log.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from foveate.core import clock
from foveate.core.stages import Stage
from foveate.observe.ledger import ItemRecord, LedgerRecord
from foveate.observe.logging import get_logger
from foveate.observe.redact import redact_text

ITEMS_MAX: Final = 3
NAME_MAX: Final = 96
HOST_MAX: Final = 64
TENANT_MAX: Final = 64
_BATCH_MAX: Final = 256
_STANDARD_OUTPUT: Final = 1

_log = get_logger(__name__)


class ItemLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One picture in a line: its own durations, whether or not it was on the critical path.

    What did not happen is absent.
    """

    index: int
    ready_ms: float | None = None
    media_fetch_ms: float | None = None
    media_decode_ms: float | None = None
    mm_processor_ms: float | None = None
    encoder_queue_ms: float | None = None
    vision_encode_ms: float | None = None
    embedding_transfer_ms: float | None = None
    host: str | None = None


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log.

    Every field is always there; a stage that did not happen, or a time that does not exist, is null.

    ``time`` is when the request ended (ISO 8601, UTC). Durations are milliseconds; where there was a first token, the
    stages and ``unattributed_ms`` add up to ``ttft_ms`` to the digit. ``error`` and ``limit_name`` say why it was not
    answered, or, where it was only estimated, the first reason why it would not be. The counts, from ``images`` to
    ``adjustments``, are those of :class:`foveate.observe.ledger.Counts`: every quantity that the budget of ``tier`` limits.
    ``items`` lists at most ITEMS_MAX pictures,
    those that were ready last; ``items_omitted`` counts the rest.
    """

    time: str
    id: str
    model: str
    tenant: str
    tier: str
    modality: str
    outcome: str
    error: str | None
    limit_name: str | None
    admission_ms: float | None
    media_fetch_ms: float | None
    media_decode_ms: float | None
    mm_processor_ms: float | None
    encoder_queue_ms: float | None
    vision_encode_ms: float | None
    embedding_transfer_ms: float | None
    llm_queue_ms: float | None
    llm_prefill_ms: float | None
    tpot_ms: float | None
    ttft_ms: float | None
    unattributed_ms: float
    total_ms: float
    images: int
    videos: int
    frames: int
    video_seconds: float
    pixels: int
    media_bytes: int
    largest_width: int
    largest_height: int
    largest_item_bytes: int
    fetch_seconds: float
    redirects: int
    adjustments: int
    visual_tokens: int
    text_tokens: int
    output_tokens: int
    cached_tokens: int
    encoder_cache_hits: int
    processor_cache_hits: int
    fetches: int
    shared: int
    items: list[ItemLine]
    items_omitted: int


def line(record: LedgerRecord, wall: float) -> RequestLine:
    """Return a record's line. ``wall`` is when the request ended, in seconds since the epoch."""
    stages, ttft_ms, unattributed_ms = record.breakdown.rounded()
    tpot_ms = record.breakdown.tpot_ms
    counts = record.counts
    return RequestLine(
        time=datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        # Both may have come from the client.
        id=redact_text(record.request_id[:NAME_MAX]),
        model=redact_text(record.model[:NAME_MAX]),
        tenant=record.tenant[:TENANT_MAX],
        tier=record.tier[:TENANT_MAX],
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
        tpot_ms=None if tpot_ms is None else round(tpot_ms, 3),
        ttft_ms=ttft_ms,
        unattributed_ms=unattributed_ms,
        total_ms=round(record.breakdown.total_ms, 3),
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
        items=[_item(item) for item in _last_ready(record.items)],
        items_omitted=max(len(record.items) - ITEMS_MAX, 0),
    )


def _last_ready(items: Sequence[ItemRecord]) -> list[ItemRecord]:
    """Return the pictures that a slow request waited for, in prompt order: a line must stay short, and they explain it."""
    latest = sorted(items, key=lambda item: math.inf if item.ready_ms is None else item.ready_ms, reverse=True)[
        :ITEMS_MAX
    ]
    return sorted(latest, key=lambda item: item.index)


def _item(item: ItemRecord) -> ItemLine:
    def ms(stage: Stage) -> float | None:
        value = item.stages.get(stage)
        return None if value is None else round(value, 3)

    return ItemLine(
        index=item.index,
        ready_ms=None if item.ready_ms is None else round(item.ready_ms, 3),
        media_fetch_ms=ms("media_fetch"),
        media_decode_ms=ms("media_decode"),
        mm_processor_ms=ms("mm_processor"),
        encoder_queue_ms=ms("encoder_queue"),
        vision_encode_ms=ms("vision_encode"),
        embedding_transfer_ms=ms("embedding_transfer"),
        host=item.host[:HOST_MAX] if item.host else None,
    )


class RequestLog:
    """Writes lines to a file (appended) or to standard output.

    Use as a context, or :meth:`start` and :meth:`close` it.
    """

    def __init__(self, path: Path | None = None, *, lines_max: int = 8192) -> None:
        self._path = path
        self._queue: queue.Queue[tuple[LedgerRecord, float] | None] = queue.Queue(lines_max)
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._descriptor = -1
        self._torn = False
        self._refused = 0
        self._failed = 0

    @property
    def dropped(self) -> int:
        """Lines lost since the start."""
        return self._refused + self._failed

    def start(self) -> None:
        """Open the file and start the writer. Raises OSError when the file cannot be opened."""
        # Not through a buffered file: that would keep lines it failed to write, and write them later as torn ones.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.dup(_STANDARD_OUTPUT) if self._path is None else os.open(self._path, flags, 0o644)
        self._thread.start()

    def write(self, record: LedgerRecord) -> None:
        """Hand a record to the writer; drop and count it when the queue is full. Never waits."""
        try:
            self._queue.put_nowait((record, clock.wall()))
        except queue.Full:
            self._refused += 1

    def close(self, seconds_max: float = 5.0) -> None:
        """Write what is queued and end the writer, within about ``seconds_max``.

        Blocks: from the event loop, use a thread.
        """
        if not self._thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=seconds_max)
        except queue.Full:
            _log.error("the request log did not take its end in time", lines=self._queue.qsize())
            return
        self._thread.join(seconds_max)
        if self._thread.is_alive():
            _log.error("the request log was not written in time", lines=self._queue.qsize())
        else:
            os.close(self._descriptor)

    def __enter__(self) -> RequestLog:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self) -> None:
        encoder = msgspec.json.Encoder()
        told = 0
        more = True
        while more:
            batch, more = self._batch()
            if batch:
                self._put(batch, encoder)
            if self.dropped > told:
                _log.warning("request-log lines were dropped", lines=self.dropped - told, total=self.dropped)
                told = self.dropped

    def _batch(self) -> tuple[list[tuple[LedgerRecord, float]], bool]:
        """Wait for a record and take those behind it, too; false when the end has come."""
        batch: list[tuple[LedgerRecord, float]] = []
        entry = self._queue.get()
        while entry is not None:
            batch.append(entry)
            if len(batch) >= _BATCH_MAX:
                return batch, True
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _put(self, batch: list[tuple[LedgerRecord, float]], encoder: msgspec.json.Encoder) -> None:
        lines = [encoder.encode(line(record, wall)) + b"\n" for record, wall in batch]
        data = b"".join(lines)
        if self._torn:
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            whole = data[:written].count(b"\n") - self._torn if written else 0
            self._failed += len(lines) - whole
            self._torn = data[written - 1 : written] != b"\n" if written else self._torn
            _log.error("the request log could not be written", reason=error.strerror or type(error).__name__)
        else:
            self._torn = False
