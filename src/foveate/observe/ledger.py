"""The ledger of one request: what happened, when, and what it came to.

The journey writes spans and counts into it; ``Server-Timing``, the request log and the metrics are all read out of it,
so they cannot disagree. It knows no metric, no HTTP and no clock but :mod:`foveate.core.clock`. Not thread-safe: it
lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from foveate.core import clock
from foveate.core.budget import ANYONE, DEFAULT_TIER
from foveate.core.stages import Modality, Span, Stage
from foveate.core.trace_context import TraceContext
from foveate.observe.critical_path import Folded, ItemSpans, fold
from foveate.observe.records import (
    Arrival,
    Breakdown,
    CachedSource,
    Counts,
    Found,
    ItemRecord,
    LedgerRecord,
    Outcome,
    Role,
    TokenGaps,
)
from foveate.observe.spending import Spent, total


class ItemLedger:
    """One media item's part of the ledger."""

    __slots__ = ("_observed", "_spans", "arrival", "found", "host", "index", "ready_at", "source", "spent")

    def __init__(self, index: int, *, observed: bool = True) -> None:
        self.index = index
        self._observed = observed
        self.host: str | None = None
        self.arrival: Arrival | None = None
        self.found: Found | None = None
        self.spent = Spent()
        self.source: CachedSource | None = None
        self.ready_at: float | None = None
        self._spans: list[Span] = []

    def span(self, span: Span) -> None:
        """Add a finished span; it may have begun before the request did (shared work).

        Raises ValueError when it ends before it begins.
        """
        if self._observed:
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

    def arrived(self, arrival: Arrival) -> None:
        """Note how it came over the network, or how far."""
        self.arrival = arrival

    def ready(self, at: float) -> None:
        """Note that the item is ready for prefill."""
        self.ready_at = at

    @property
    def known(self) -> int:
        """How many things that decide the critical path are known of it: grows with each."""
        return len(self._spans) + (self.ready_at is not None)

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
        trace: TraceContext | None = None,
        observed: bool = True,
    ) -> None:
        """Not ``observed``, it counts what the answer itself needs and keeps no times but those of the first token and the end."""
        self.request_id = request_id
        self.model = model
        self.tenant = tenant
        self.tier = tier
        self.trace = trace
        self._observed = observed
        self.span_of_request: TraceContext | None = None
        """The request's own span where it is traced; it is told to whoever is asked on its behalf."""
        self.received_at = received_at
        self.modality: Modality = "multimodal" if images or videos else "text"
        self.counts = Counts(images=images, videos=videos)
        self.spent = Spent()
        self.role: Role | None = None
        self._spans: list[Span] = []
        self._ahead: tuple[Span, ...] = ()
        self._items: dict[int, ItemLedger] = {}
        self._choices: dict[int, _Choice] = {}
        self._gaps: TokenGaps | None = None
        self._first_token_at: float | None = None
        self._folded: tuple[int, list[ItemLedger], Folded] | None = None
        self._ended = False

    @property
    def onward(self) -> str:
        """The ``traceparent`` for others who work on this request: its own span, else its caller's; empty where there is neither."""
        above = self.span_of_request or self.trace
        return "" if above is None else above.header()

    def span(self, span: Span) -> None:
        """Add a finished span of the request itself: admission, llm_queue, llm_prefill.

        Raises ValueError as for items.
        """
        if self._observed:
            self._spans.append(_checked(span))

    def spans(self, spans: Iterable[Span]) -> None:
        """Add finished spans of the request itself."""
        for span in spans:
            self.span(span)

    def prefilled_ahead(self, steps: Iterable[Span], ready_at: float) -> None:
        """Note the request's own prefill steps that began before its last picture was ready, at ``ready_at``: the time of each until then.

        That is the time that overlap saved, where prefill and encoder each have cores or a device of their own; where they share them,
        the encoder took longer for it. It is no stage: this time belongs to the picture that was still being made.
        """
        if self._observed:
            self._ahead = tuple(
                Span(step.stage, step.start, min(step.end, ready_at)) for step in steps if step.start < ready_at
            )

    def item(self, index: int) -> ItemLedger:
        """Return the part of the ledger that belongs to the picture ``index``."""
        found = self._items.get(index)
        if found is None:
            found = self._items[index] = ItemLedger(index, observed=self._observed)
        return found

    def first_token(self, at: float) -> None:
        """Note the first token, which closes the window of the stages. Raises RuntimeError the second time."""
        if self._first_token_at is not None:
            raise RuntimeError(f"request {self.request_id} had its first token already")
        self._first_token_at = at

    def output(self, tokens: int, at: float, choice: int = 0) -> None:
        """Count ``tokens`` new tokens of one choice, that arrived together at ``at``."""
        self.counts.output_tokens += tokens
        if not self._observed:
            return
        timing = self._choices.get(choice)
        if timing is None:
            self._choices[choice] = _Choice(at)
            return
        if tokens:
            self._gaps = self._gaps or TokenGaps()
            self._gaps.note(max(at - timing.last_at, 0.0), tokens)
        timing.last_at = at
        timing.tokens_after_first += tokens

    def breakdown(self, now: float | None = None) -> Breakdown:
        """Return the time so far.

        ``now`` (default: the clock) ends the total and, before the first token, the stages' window.
        """
        now = clock.now() if now is None else now
        first = self._first_token_at
        items, folded = self._fold(now if first is None else first)
        return Breakdown(
            stages=folded.stages,
            ttft_ms=None if first is None else folded.window_ms,
            unattributed_ms=folded.unattributed_ms,
            tpot_ms=self._tpot_ms(),
            total_ms=max(now - self.received_at, 0.0) * 1e3,
            starts=folded.starts,
            critical=None if folded.critical is None else items[folded.critical].index,
            overlap_ms=sum(step.end - step.start for step in self._ahead) * 1e3 if self._ahead else None,
        )

    def _fold(self, until: float) -> tuple[list[ItemLedger], Folded]:
        """Return the items and the fold of the critical path, which stays as it is after the first token unless a span is added."""
        known = len(self._spans) + sum(item.known for item in self._items.values())
        if self._folded is not None and self._folded[0] == known and self._first_token_at is not None:
            return self._folded[1:]
        items = list(self._items.values())
        folded = fold(self.received_at, until, self._spans, [item.view() for item in items])
        if self._first_token_at is not None:
            self._folded = known, items, folded
        return items, folded

    def server_timing(self) -> str:
        """Return the ``Server-Timing`` value: finished stages, ``ttft`` and ``unattributed``, ``dur`` in milliseconds; and where prefill
        began before all pictures were encoded, ``prefill_overlap``, which is not part of the sum.

        For an error answer (no first token) ``ttft`` is absent and ``unattributed`` is what the stages leave of the
        time until now. Empty where the request is not observed.
        """
        if not self._observed:
            return ""
        breakdown = self.breakdown()
        stages, ttft_ms, unattributed_ms = breakdown.rounded()
        parts = [f"{stage};dur={ms:.3f}" for stage, ms in stages.items()]
        if ttft_ms is not None:
            parts.append(f"ttft;dur={ttft_ms:.3f}")
        parts.append(f"unattributed;dur={unattributed_ms:.3f}")
        if breakdown.overlap_ms is not None:
            parts.append(f"prefill_overlap;dur={breakdown.overlap_ms:.3f}")
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
            spans=tuple(self._spans),
            trace=self.trace,
            role=self.role,
            gaps=self._gaps,
            span=self.span_of_request,
            ahead=self._ahead,
        )

    def _engine_seen_ms(self, breakdown: Breakdown) -> float:
        """Return the engine's time as it looks from here, where the engine does not say its own: others' share of its steps included."""
        last = max((choice.last_at for choice in self._choices.values()), default=None)
        after = 0.0 if last is None or self._first_token_at is None else max(last - self._first_token_at, 0.0) * 1e3
        return breakdown.stages.get("llm_prefill", 0.0) + breakdown.stages.get("upstream", 0.0) + after

    def _item_record(self, item: ItemLedger, at: float) -> ItemRecord:
        ready_ms = None if item.ready_at is None else (item.ready_at - self.received_at) * 1e3
        view = item.view()
        stages: dict[Stage, float] = {}
        starts: dict[Stage, float] = {}
        if view.spans:
            folded = fold(self.received_at, at, (), [view])
            stages, starts = folded.stages, folded.starts
        return ItemRecord(
            index=item.index,
            stages=stages,
            starts=starts,
            ready_ms=ready_ms,
            host=item.host,
            found=item.found,
            spent=item.spent,
            source=item.source,
            arrival=item.arrival,
            spans=tuple(view.spans),
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
