"""What requests cost: prices applied to what they took, and totals by tenant, model, modality and tier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, Literal, get_args

import msgspec

from foveate.observe.records import LedgerRecord
from foveate.observe.request_line import RequestLine, line
from foveate.observe.spending import QUANTITIES, Spent

Dimension = Literal["tenant", "model", "modality", "tier"]
DIMENSIONS: Final[tuple[Dimension, ...]] = get_args(Dimension)
OTHERS: Final = "(others)"
"""Where totals of combinations beyond the bound go. No tenant or model can be called so."""
_HOUR_MS: Final = 3_600_000.0


class Prices(msgspec.Struct, frozen=True):
    """Prices in one currency, whichever: of an hour of a processor core, of the encoder's and the language model's device, and of 10^9
    bytes that media origins send. 0: not priced.
    """

    cpu_hour: float = 0.0
    encoder_gpu_hour: float = 0.0
    llm_gpu_hour: float = 0.0
    egress_gb: float = 0.0


class Money(msgspec.Struct, frozen=True):
    """What was spent, by what it was spent on, in the currency of the prices."""

    cpu: float
    encoder: float
    llm: float
    egress: float
    total: float


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of some requests. A dimension that was not asked for is null. Quantities as in :class:`foveate.observe.spending.Spent`."""

    tenant: str | None = None
    model: str | None = None
    modality: str | None = None
    tier: str | None = None
    requests: int
    fetch_bytes: int
    media_cpu_ms: float
    processor_cpu_ms: float
    encoder_ms: float
    engine_token_ms: float
    cache_saved_ms: float
    cost: Money


class CostReport(msgspec.Struct, frozen=True):
    """Totals since the start, the most expensive first, and the prices in force."""

    prices: Prices
    by: tuple[Dimension, ...]
    rows: tuple[Totals, ...]


def priced(spent: Spent, prices: Prices) -> Money:
    """Return what it comes to."""
    cpu = (spent.media_cpu_ms + spent.processor_cpu_ms) / _HOUR_MS * prices.cpu_hour
    encoder = spent.encoder_ms / _HOUR_MS * prices.encoder_gpu_hour
    llm = spent.engine_token_ms / _HOUR_MS * prices.llm_gpu_hour
    egress = spent.fetch_bytes / 1e9 * prices.egress_gb
    return Money(cpu, encoder, llm, egress, cpu + encoder + llm + egress)


class CostTable:
    """Adds requests up by all four dimensions. Combinations beyond ``rows_max`` are added up together."""

    def __init__(self, prices: Prices, *, rows_max: int = 4096) -> None:
        self.prices = prices
        self._rows_max = rows_max
        self._rows: dict[tuple[str, ...], tuple[int, Spent]] = {}

    def add(self, who: tuple[str, str, str, str], spent: Spent) -> None:
        """Add one request: tenant, model, modality, tier, and what it took."""
        key: tuple[str, ...] = who
        if key not in self._rows and len(self._rows) >= self._rows_max:
            key = (OTHERS,) * len(DIMENSIONS)
        number, total = self._rows.get(key, (0, Spent()))
        total.add(spent)
        self._rows[key] = number + 1, total

    def report(self, by: Sequence[Dimension]) -> CostReport:
        """Return the totals by these dimensions."""
        grouped: dict[tuple[str | None, ...], tuple[int, Spent]] = {}
        for key, (number, spent) in self._rows.items():
            group = tuple(value if name in by else None for name, value in zip(DIMENSIONS, key, strict=True))
            before, total = grouped.get(group, (0, Spent()))
            total.add(spent)
            grouped[group] = before + number, total
        rows = [self._totals(group, number, spent) for group, (number, spent) in grouped.items()]
        rows.sort(key=lambda row: (row.cost.total, row.engine_token_ms + row.encoder_ms), reverse=True)
        return CostReport(self.prices, tuple(name for name in DIMENSIONS if name in by), tuple(rows))

    def _totals(self, group: tuple[str | None, ...], number: int, spent: Spent) -> Totals:
        tenant, model, modality, tier = group
        quantities = {name: round(getattr(spent, name), 3) for name in QUANTITIES}
        return Totals(
            tenant=tenant,
            model=model,
            modality=modality,
            tier=tier,
            requests=number,
            cost=priced(spent, self.prices),
            **quantities,
        )


class CostBook(CostTable):
    """The totals of a running server, and the ``recent_max`` requests that ended last. Lives on the event loop."""

    def __init__(self, prices: Prices, *, rows_max: int = 4096, recent_max: int = 1024) -> None:
        super().__init__(prices, rows_max=rows_max)
        self._recent: OrderedDict[str, tuple[LedgerRecord, float]] = OrderedDict()
        self._recent_max = recent_max

    def note(self, record: LedgerRecord, wall: float) -> None:
        """Count a request that ended at ``wall`` (seconds since the epoch)."""
        self.add((record.tenant, record.model, record.modality, record.tier), record.spent)
        self._recent[record.request_id] = record, wall
        while len(self._recent) > self._recent_max:
            self._recent.popitem(last=False)

    def recent(self, request_id: str) -> RequestLine | None:
        """Return the request's line, as the request log has it, if it is one of those that ended last."""
        found = self._recent.get(request_id)
        return None if found is None else line(*found)


def spent_of(logged: RequestLine) -> Spent:
    """Return what a logged request took."""
    return Spent(**{name: getattr(logged, name) for name in QUANTITIES})


def table_of(lines: Iterable[RequestLine], prices: Prices) -> CostTable:
    """Return the totals of a request log. A request that was refused before it was understood took nothing and is not counted."""
    table = CostTable(prices)
    for logged in lines:
        if logged.modality != "unknown":
            table.add((logged.tenant, logged.model, logged.modality, logged.tier), spent_of(logged))
    return table
