"""A finished request as it is counted and logged: how it ended, what it carried, where its time went. Values only; no clock.

:mod:`foveate.observe.ledger` fills them in while the request is under way.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final, Literal, get_args

import msgspec

from foveate.core.errors import FoveateError, Overloaded, Refused
from foveate.core.stages import Modality, Span, Stage
from foveate.core.trace_context import TraceContext
from foveate.observe.spending import Spent

Outcome = Literal["answered", "estimated", "refused", "overloaded", "failed", "cancelled"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
CachedSource = Literal["cache", "revalidated"]
Role = Literal["stable", "canary"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Of a version of the model: the one that serves, or a new one on trial beside it."""
Topology = Literal["agg", "e-pd", "e-p-d"]
TOPOLOGIES: Final[tuple[Topology, ...]] = get_args(Topology)
"""Where the encoder and the language model run: together, the encoder apart, prefill and token decode apart, too."""
TOKEN_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets that times a token are counted in."""
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
    index of the item on that path (``None``: no item was touched). ``overlap_ms`` is prefill that ran before the last picture was ready
    (:meth:`foveate.observe.ledger.RequestLedger.prefilled_ahead`), ``None`` where none did; it is not part of the sum.
    """

    stages: dict[Stage, float]
    ttft_ms: float | None
    unattributed_ms: float
    tpot_ms: float | None
    total_ms: float
    starts: dict[Stage, float] = {}
    critical: int | None = None
    overlap_ms: float | None = None

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


class TokenGaps(msgspec.Struct):
    """Times between a choice's tokens, counted in the buckets of TOKEN_SECONDS (the last: beyond them), and their sum in seconds."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(TOKEN_SECONDS) + 1))
    seconds: float = 0.0

    def note(self, seconds: float, tokens: int) -> None:
        """Count that ``tokens`` came together, ``seconds`` after what came before them."""
        self.counts[bisect_left(TOKEN_SECONDS, seconds / tokens)] += tokens
        self.seconds += seconds


class Arrival(msgspec.Struct, frozen=True):
    """How far a transfer over the network came: after ``redirects`` redirects, in ``retries`` + 1 tries; ``partial_bytes`` is what had
    come in the last of them where it failed (``None``: it came to its end).
    """

    redirects: int = 0
    retries: int = 0
    partial_bytes: int | None = None


class ItemRecord(msgspec.Struct, frozen=True):
    """One media item's own durations (milliseconds), whether or not it was on the critical path.

    ``starts`` tells when each of its stages first began and ``ready_ms`` when it was ready, both counted from the request's arrival;
    ``host`` is where a fetched item came from, or was to, ``arrival`` how it came, ``found`` what spared the work on it, ``spent``
    what it took, and ``source`` says if its bytes came out of the media cache.
    """

    index: int
    stages: dict[Stage, float]
    starts: dict[Stage, float]
    ready_ms: float | None
    host: str | None
    found: Found | None = None
    spent: Spent = msgspec.field(default_factory=Spent)
    source: CachedSource | None = None
    arrival: Arrival | None = None
    spans: tuple[Span, ...] = ()


class LedgerRecord(msgspec.Struct, frozen=True):
    """A finished request. Times are monotonic seconds. It holds nothing of the request's body.

    ``modality`` is unknown of a request that was refused before its body was understood, ``tenant`` and ``tier`` are
    empty where nobody could tell who asks.
    ``limit_name`` is the limit that refused it, of a tier or of the server. ``spent`` includes that of all items; ``spans``
    are the request's own, as they were recorded, and ``trace`` is the trace that its caller said it belongs to.
    ``role`` is that of the model's version which it was given to while a new one was on trial. ``gaps`` are None where no choice
    had two outputs. ``span`` is the request's own span, which others' spans go under; None where nothing is traced. ``ahead`` are the
    prefill steps of ``breakdown.overlap_ms``.
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
    spans: tuple[Span, ...] = ()
    trace: TraceContext | None = None
    role: Role | None = None
    gaps: TokenGaps | None = None
    span: TraceContext | None = None
    ahead: tuple[Span, ...] = ()
