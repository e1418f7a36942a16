"""Where the ledger's records go: into the metrics and the request log. The journey calls it twice a request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

import msgspec

from foveate.core import clock
from foveate.core.budget import Caller
from foveate.core.errors import FoveateError, UrlRefused
from foveate.core.stages import Modality, Stage
from foveate.core.trace_context import TraceContext
from foveate.decisions.objectives import Targets
from foveate.observe.cost import CostBook, Prices
from foveate.observe.labels import CARRIED, CODE, ITEM_STAGE, LIMIT, OTHER
from foveate.observe.ledger import RequestLedger
from foveate.observe.metrics import Metrics
from foveate.observe.recent import RecentRequests
from foveate.observe.records import Breakdown, Counts, LedgerRecord, Topology, outcome_of
from foveate.observe.request_log import RequestLog
from foveate.observe.slo import Objectives

_CODES = frozenset(CODE.values)
_LIMITS = frozenset(LIMIT.values)
_ITEM_STAGES: frozenset[str] = frozenset(ITEM_STAGE.values)


class KvPrefix(msgspec.Struct, frozen=True):
    """What the engine said of its own prefix cache, over the requests that it answered: prompt tokens that it did not have to prefill.

    ``hits`` counts requests that had any. An engine that keeps no such cache says zero.
    """

    requests: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class TraceSink(Protocol):
    """What exports traces (:class:`foveate.observe.traces.Traces`)."""

    @property
    def dropped(self) -> int:
        """Requests whose trace was lost since the start."""
        ...

    def begin(self, caller: TraceContext | None) -> TraceContext:
        """Return the span of a request that has begun, and whether it is recorded."""
        ...

    def write(self, record: LedgerRecord) -> None:
        """Take a finished request. Never waits."""
        ...


class Observer:
    """Feeds ``metrics``, ``costs`` and, where there is one, the request log. ``kv_prefix`` is what engines reported since the start,
    ``topology`` where the encoder runs from now on."""

    def __init__(
        self,
        metrics: Metrics,
        log: RequestLog | None,
        costs: CostBook | None = None,
        targets: Mapping[Modality, Targets] | None = None,
        traces: TraceSink | None = None,
        *,
        topology: Topology = "agg",
        on: bool = True,
    ) -> None:
        """``on`` false: it counts how requests ended and by what error or limit, and nothing else (the setting observe.requests)."""
        self.metrics = metrics
        self._log = log
        self.topology = topology
        self.on = on
        self.traces = traces
        self.costs = CostBook(Prices()) if costs is None else costs
        self.objectives = Objectives(
            targets or {}, clock.now, lambda *labels: metrics.count("foveate_slo_requests_total", *labels)
        )
        self.recent = RecentRequests(clock.wall)
        self.kv_prefix = KvPrefix()
        for what in CARRIED:
            metrics.bind(f"foveate_{what}_total", partial(metrics.sums, f"foveate_request_{what}"))

    def opened(self, ledger: RequestLedger) -> None:
        """A request has begun."""
        self.metrics.move("foveate_requests_in_flight", ledger.modality, by=1)
        if self.traces is not None:
            ledger.span_of_request = self.traces.begin(ledger.trace)

    def ended(self, record: LedgerRecord) -> None:
        """A request that was opened has ended. What was only estimated is no one's latency, carried nothing to the model, and refused
        nobody anything.
        """
        self.metrics.move("foveate_requests_in_flight", record.modality, by=-1)
        self.metrics.count("foveate_requests_total", record.modality, record.outcome)
        if record.outcome != "estimated":
            self._error(record)
        if not self.on:
            return
        if record.outcome != "estimated":
            self._times(record)
            self._carried(record)
            self._kv_prefix(record)
            for item in record.items:
                self._item(item.stages)
        self._spent(record)
        self.costs.note(record, clock.wall_at(record.ended_at))
        self.objectives.note(record)
        self.recent.note(record)
        if self._log is not None:
            self._log.write(record)
        if self.traces is not None:
            self.traces.write(record)

    def refused(self, request_id: str, since: tuple[float, float], error: FoveateError, caller: Caller | None) -> None:
        """A request was refused before it was understood: it was never opened, and its modality is not known.

        ``since``: when it was received and when it ended. ``caller`` is None where nobody could tell who asks.
        """
        received_at, at = since
        total_ms = (at - received_at) * 1e3
        self.metrics.count("foveate_requests_total", "unknown", outcome_of(error))
        self.metrics.count("foveate_errors_total", error.code)
        self._budget(error.limit_name)
        self.forbidden(error)
        if self._log is not None:
            tenant, tier = ("", "") if caller is None else (caller.tenant, caller.budget.tier)
            nothing = Breakdown({}, None, total_ms, None, total_ms)
            ending = (outcome_of(error), error.code, error.limit_name, received_at, at)
            self._log.write(LedgerRecord(request_id, "", tenant, tier, "unknown", *ending, Counts(), nothing, ()))

    def forbidden(self, error: FoveateError | None) -> None:
        """Count the rule of the URL policy that refused a request, where it is one that did."""
        if isinstance(error, UrlRefused) and error.rule is not None:
            self.metrics.count("foveate_policy_refusals_total", error.rule)

    def _error(self, record: LedgerRecord) -> None:
        if record.error_code is not None:
            code = record.error_code if record.error_code in _CODES else FoveateError.code
            self.metrics.count("foveate_errors_total", code)
        self._budget(record.limit_name)

    def _budget(self, limit_name: str | None) -> None:
        if limit_name is not None:
            known = limit_name if limit_name in _LIMITS else OTHER
            self.metrics.count("foveate_budget_rejections_total", known)

    def _times(self, record: LedgerRecord) -> None:
        # Stages only where there was a first token: how far a failed request had come by then is no one's latency.
        observe = self.metrics.observe
        breakdown, modality, topology = record.breakdown, record.modality, self.topology
        observe("foveate_request_seconds", modality, topology, value=breakdown.total_ms / 1e3)
        if breakdown.ttft_ms is None:
            return
        observe("foveate_ttft_seconds", modality, topology, value=breakdown.ttft_ms / 1e3)
        observe("foveate_unattributed_seconds", modality, topology, value=breakdown.unattributed_ms / 1e3)
        for stage, ms in breakdown.stages.items():
            observe("foveate_stage_seconds", stage, modality, topology, value=ms / 1e3)
        if breakdown.overlap_ms is not None:
            observe("foveate_prefill_overlap_seconds", topology, value=breakdown.overlap_ms / 1e3)
        if breakdown.tpot_ms is not None:
            observe("foveate_tpot_seconds", modality, topology, value=breakdown.tpot_ms / 1e3)
        if record.gaps is not None:
            name, gaps = "foveate_inter_token_seconds", record.gaps
            self.metrics.observe_many(name, modality, topology, counts=gaps.counts, total=gaps.seconds)

    def _carried(self, record: LedgerRecord) -> None:
        counts, modality = record.counts, record.modality
        self._carry("text_tokens", counts.text_tokens, modality)
        self._carry("output_tokens", counts.output_tokens, modality)
        if modality == "multimodal":
            self._carry("images", counts.images)
            self._carry("pixels", counts.pixels)
            if counts.frames:
                self._carry("frames", counts.frames)
            self._carry("media_bytes", counts.media_bytes)
            self._carry("visual_tokens", counts.visual_tokens)

    def _kv_prefix(self, record: LedgerRecord) -> None:
        if record.outcome != "answered":  # an engine tells with the last event
            return
        before, counts = self.kv_prefix, record.counts
        self.kv_prefix = KvPrefix(
            requests=before.requests + 1,
            hits=before.hits + (counts.cached_tokens > 0),
            prompt_tokens=before.prompt_tokens + counts.text_tokens + counts.visual_tokens,
            cached_tokens=before.cached_tokens + counts.cached_tokens,
        )

    def _spent(self, record: LedgerRecord) -> None:
        spent, modality = record.spent, record.modality
        for name, amount in (
            ("fetch_bytes", spent.fetch_bytes),
            ("media_cpu_seconds", spent.media_cpu_ms / 1e3),
            ("processor_cpu_seconds", spent.processor_cpu_ms / 1e3),
            ("encoder_seconds", spent.encoder_ms / 1e3),
            ("engine_token_seconds", spent.engine_token_ms / 1e3),
            ("saved_seconds", spent.cache_saved_ms / 1e3),
        ):
            if amount:
                self.metrics.count(f"foveate_spent_{name}_total", modality, amount=amount)

    def _carry(self, what: str, amount: int, *labels: str) -> None:
        self.metrics.observe(f"foveate_request_{what}", *labels, value=amount)

    def _item(self, stages: dict[Stage, float]) -> None:
        for stage, ms in stages.items():
            if stage in _ITEM_STAGES:
                self.metrics.observe("foveate_item_stage_seconds", stage, value=ms / 1e3)
