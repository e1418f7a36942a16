"""The ledger of one request: what happened, when, and what it came to.

The journey writes spans and counts into it; ``Server-Timing``, the request log and the metrics are all read out of it,
so they cannot disagree. It knows no metric, no HTTP and no clock but :mod:`foveate.core.clock`. Not thread-safe: it
lives on the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

import msgspec

from foveate.core import clock
from foveate.core.budget import ANYONE, DEFAULT_TIER
from foveate.core.errors import FoveateError, Overloaded, Refused
from foveate.core.stages import Modality, Span, Stage
from foveate.observe.critical_path import ItemSpans, fold
from foveate.observe.spending import Spent, total

Outcome = Literal["answered", "estimated", "refused", "overloaded", "failed", "cancelled"]
CachedSource = Literal["cache", "revalidated"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
Found = Literal["encoder_cache", "processor_cache", "in_flight"]
"""What spared the work on an item: a cache, or equal work in flight for another request."""


def outcome_of(error: FoveateError) -> Outcome:
    """Return how a request that ended in ``error`` ended."""
    if isinstance(error, Refused):
        return "refused"
    return "overloaded" if isinstance(error, Overloaded) else "failed"


class Counts(msgspec.Struct):
    """What a request carried and caused, with every quantity that its budget limits.

    ``pixels`` and ``media_bytes`` are sums as its tier counts them (repeats once, where it says so); ``largest_*`` are of one medium as
    it came, before anything was made to fit; ``fetch_seconds`` is the time until its last medium was there, ``redirects`` the most that
    one URL took, ``adjustments`` how many media were made to fit.

    ``fetches`` counts those that used the network; ``shared`` counts pictures that joined work already in flight for
    another request. ``upstream`` is the server behind this one that answered, and the two times are what it said of the request itself.
    """

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
    upstream: str = ""
    upstream_queue_ms: float | None = None
    upstream_prefill_ms: float | None = None


class Breakdown(msgspec.Struct, frozen=True):
    """A request's time, in milliseconds.

    Once there was a first token, ``ttft_ms == sum(stages.values()) + unattributed_ms``. Before that (an error answer)
    ``ttft_ms`` is ``None`` and the same sum equals ``total_ms``. ``tpot_ms`` is ``None`` with fewer than two output
    events. ``starts`` tells when each stage of the critical path began, counted from the request's arrival, and ``critical`` the
    index of the item on that path (``None``: no item was touched).
    """

    stages: dict[Stage, float]
    ttft_ms: float | None
    unattributed_ms: float
    tpot_ms: float | None
    total_ms: float
    starts: dict[Stage, float] = {}
    critical: int | None = None

    def rounded(self) -> tuple[dict[Stage, float], float | None, float]:
        """Return stages, ``ttft_ms`` and ``unattributed_ms`` in whole microseconds, still closing to the digit.

        Rounded one by one they would not add up; so stages are rounded down and what that loses goes to
        ``unattributed_ms``.
        """
        window = self.total_ms if self.ttft_ms is None else self.ttft_ms
        stages = {stage: math.floor(ms * 1e3 + 1e-3) for stage, ms in self.stages.items()}
        covered = sum(stages.values())
        rest = max(math.floor(window * 1e3 + 1e-3) - covered, 0)
        ttft = None if self.ttft_ms is None else (covered + rest) / 1e3
        return {stage: us / 1e3 for stage, us in stages.items()}, ttft, rest / 1e3


class ItemRecord(msgspec.Struct, frozen=True):
    """One media item's own durations (milliseconds), whether or not it was on the critical path.

    ``starts`` tells when each of its stages first began and ``ready_ms`` when it was ready, both counted from the request's arrival;
    ``host`` is where a fetched item came from, ``found`` what spared the work on it, ``spent`` what it took, and ``source`` says if its
    bytes came out of the media cache.
    """

    index: int
    stages: dict[Stage, float]
    starts: dict[Stage, float]
    ready_ms: float | None
    host: str | None
    found: Found | None = None
    spent: Spent = msgspec.field(default_factory=Spent)
    source: CachedSource | None = None


class LedgerRecord(msgspec.Struct, frozen=True):
    """A finished request. Times are monotonic seconds. It holds nothing of the request's body.

    ``modality`` is unknown of a request that was refused before its body was understood, ``tenant`` and ``tier`` are
    empty where nobody could tell who asks.
    ``limit_name`` is the limit that refused it, of a tier or of the server. ``spent`` includes that of all items.
    """

    request_id: str
    model: str
    tenant: str
    tier: str
    modality: Modality | Literal["unknown"]
    outcome: Outcome
    error_code: str | None
    limit_name: str | None
    received_at: float
    ended_at: float
    counts: Counts
    breakdown: Breakdown
    items: tuple[ItemRecord, ...]
    spent: Spent = msgspec.field(default_factory=Spent)


class ItemLedger:
    """One media item's part of the ledger."""

    __slots__ = ("_spans", "found", "host", "index", "ready_at", "source", "spent")

    def __init__(self, index: int) -> None:
        self.index = index
        self.host: str | None = None
        self.found: Found | None = None
        self.spent = Spent()
        self.source: CachedSource | None = None
        self.ready_at: float | None = None
        self._spans: list[Span] = []

    def span(self, span: Span) -> None:
        """Add a finished span; it may have begun before the request did (shared work).

        Raises ValueError when it ends before it begins.
        """
        self._spans.append(_checked(span))

    def spans(self, spans: Iterable[Span]) -> None:
        """Add finished spans."""
        for span in spans:
            self.span(span)

    def spared(self, found: Found, cost_ms: Mapping[Stage, float], *stages: Stage) -> None:
        """Note what spared the work of these stages (all, if none is named), and what that work had cost when it was done."""
        self.found = found
        self.spent.saved(cost_ms, *stages)

    def origin(self, host: str) -> None:
        """Note the host a fetched item comes from: a bare host name.

        Raises ValueError for anything that could carry more.
        """
        if not host or len(host) > 255 or any(mark in host for mark in "/?#@ "):
            raise ValueError("an item's origin is a bare host name")
        self.host = host

    def ready(self, at: float) -> None:
        """Note that the item is ready for prefill."""
        self.ready_at = at

    def view(self) -> ItemSpans:
        """Return the item as the fold takes it."""
        return ItemSpans(self.ready_at, self._spans)


class _Choice:
    """Output times of one choice.

    The first event's tokens are not counted: nothing is known of the time between them.
    """

    __slots__ = ("first_at", "last_at", "tokens_after_first")

    def __init__(self, at: float) -> None:
        self.first_at = self.last_at = at
        self.tokens_after_first = 0


class RequestLedger:
    """The ledger of one request, from its arrival to its one end."""

    def __init__(
        self,
        *,
        request_id: str,
        model: str,
        received_at: float,
        images: int,
        videos: int = 0,
        tenant: str = ANYONE,
        tier: str = DEFAULT_TIER,
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.tenant = tenant
        self.tier = tier
        self.received_at = received_at
        self.modality: Modality = "multimodal" if images or videos else "text"
        self.counts = Counts(images=images, videos=videos)
        self.spent = Spent()
        self._spans: list[Span] = []
        self._items: dict[int, ItemLedger] = {}
        self._choices: dict[int, _Choice] = {}
        self._first_token_at: float | None = None
        self._ended = False

    def span(self, span: Span) -> None:
        """Add a finished span of the request itself: admission, llm_queue, llm_prefill.

        Raises ValueError as for items.
        """
        self._spans.append(_checked(span))

    def spans(self, spans: Iterable[Span]) -> None:
        """Add finished spans of the request itself."""
        for span in spans:
            self.span(span)

    def item(self, index: int) -> ItemLedger:
        """Return the part of the ledger that belongs to the picture ``index``."""
        found = self._items.get(index)
        if found is None:
            found = self._items[index] = ItemLedger(index)
        return found

    def first_token(self, at: float) -> None:
        """Note the first token, which closes the window of the stages. Raises RuntimeError the second time."""
        if self._first_token_at is not None:
            raise RuntimeError(f"request {self.request_id} had its first token already")
        self._first_token_at = at

    def output(self, tokens: int, at: float, choice: int = 0) -> None:
        """Count ``tokens`` new tokens of one choice, that arrived together at ``at``."""
        self.counts.output_tokens += tokens
        timing = self._choices.get(choice)
        if timing is None:
            self._choices[choice] = _Choice(at)
            return
        timing.last_at = at
        timing.tokens_after_first += tokens

    def breakdown(self, now: float | None = None) -> Breakdown:
        """Return the time so far.

        ``now`` (default: the clock) ends the total and, before the first token, the stages' window.
        """
        now = clock.now() if now is None else now
        first = self._first_token_at
        items = list(self._items.values())
        views = [item.view() for item in items]
        folded = fold(self.received_at, now if first is None else first, self._spans, views)
        return Breakdown(
            stages=folded.stages,
            ttft_ms=None if first is None else folded.window_ms,
            unattributed_ms=folded.unattributed_ms,
            tpot_ms=self._tpot_ms(),
            total_ms=max(now - self.received_at, 0.0) * 1e3,
            starts=folded.starts,
            critical=None if folded.critical is None else items[folded.critical].index,
        )

    def server_timing(self) -> str:
        """Return the ``Server-Timing`` value: finished stages, ``ttft`` and ``unattributed``, ``dur`` in milliseconds.

        For an error answer (no first token) ``ttft`` is absent and ``unattributed`` is what the stages leave of the
        time until now.
        """
        stages, ttft_ms, unattributed_ms = self.breakdown().rounded()
        parts = [f"{stage};dur={ms:.3f}" for stage, ms in stages.items()]
        if ttft_ms is not None:
            parts.append(f"ttft;dur={ttft_ms:.3f}")
        parts.append(f"unattributed;dur={unattributed_ms:.3f}")
        return ", ".join(parts)

    def end(
        self, outcome: Outcome, *, error_code: str | None, at: float, limit_name: str | None = None
    ) -> LedgerRecord:
        """End the request. Raises RuntimeError the second time: a request ends exactly once."""
        if self._ended:
            raise RuntimeError(f"request {self.request_id} has ended already")
        self._ended = True
        breakdown = self.breakdown(at)
        if not self.spent.engine_token_ms and breakdown.ttft_ms is not None:
            self.spent.engine_token_ms = self._engine_seen_ms(breakdown)
        return LedgerRecord(
            request_id=self.request_id,
            model=self.model,
            tenant=self.tenant,
            tier=self.tier,
            modality=self.modality,
            outcome=outcome,
            error_code=error_code,
            limit_name=limit_name,
            received_at=self.received_at,
            ended_at=at,
            counts=self.counts,
            breakdown=breakdown,
            items=tuple(
                self._item_record(item, at) for item in sorted(self._items.values(), key=lambda item: item.index)
            ),
            spent=total((self.spent, *(item.spent for item in self._items.values()))),
        )

    def _engine_seen_ms(self, breakdown: Breakdown) -> float:
        """Return the engine's time as it looks from here, where the engine does not say its own: others' share of its steps included."""
        last = max((choice.last_at for choice in self._choices.values()), default=None)
        after = 0.0 if last is None or self._first_token_at is None else max(last - self._first_token_at, 0.0) * 1e3
        return breakdown.stages.get("llm_prefill", 0.0) + after

    def _item_record(self, item: ItemLedger, at: float) -> ItemRecord:
        ready_ms = None if item.ready_at is None else (item.ready_at - self.received_at) * 1e3
        folded = fold(self.received_at, at, (), [item.view()])
        return ItemRecord(
            item.index, folded.stages, folded.starts, ready_ms, item.host, item.found, item.spent, item.source
        )

    def _tpot_ms(self) -> float | None:
        """Time per output token after the first, over all choices: each choice's time by each choice's tokens."""
        tokens = sum(choice.tokens_after_first for choice in self._choices.values())
        if not tokens:
            return None
        return sum(choice.last_at - choice.first_at for choice in self._choices.values()) * 1e3 / tokens


def _checked(span: Span) -> Span:
    if span.end < span.start:
        raise ValueError(f"{span.stage} ends {span.start - span.end:.9f} s before it begins")
    return span
