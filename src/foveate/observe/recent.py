"""What the dashboard shows of the last half hour: percentiles of times, slot by slot, and the slowest requests. Text and multimodal apart.

Bounded whatever the load: times are counted in buckets, and of each stretch only the slowest are kept, as lines of the request log.
Not covered: more than this half hour; that is a Prometheus's to keep.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from operator import add
from typing import Final, get_args

import msgspec

from foveate.core.stages import STAGES, Modality
from foveate.observe.records import LedgerRecord
from foveate.observe.request_line import RequestLine, line

SLOT_SECONDS: Final = 15.0
SLOTS: Final = 120
"""Half an hour of slots: as many points as a chart on a phone can show."""
KEPT_SECONDS: Final = 300.0
_STRETCHES: Final = math.ceil(SLOT_SECONDS * SLOTS / KEPT_SECONDS)
SLOWEST: Final = 20
"""Requests listed of each modality; as many are kept of each stretch of KEPT_SECONDS, so that the list is exact over the whole."""
ITEMS: Final = 12
"""Items of a request's waterfall; those that were ready last, as in the request log."""
QUANTILES: Final = (0.5, 0.95, 0.99)
TTFT: Final = "ttft"
UNATTRIBUTED: Final = "unattributed"
SERIES: Final = (TTFT, *STAGES, UNATTRIBUTED)

_LEAST_MS: Final = 0.01
_PER_DECADE: Final = 20
_BUCKETS: Final = 7 * _PER_DECADE
"""From 10 µs to 100 s, each bucket 12 % wider than the last: a percentile is told to within 6 %."""
_BOUNDS: Final = tuple(_LEAST_MS * 10 ** (index / _PER_DECADE) for index in range(1, _BUCKETS))
"""Where each bucket ends; the last one does not."""

Percentiles = tuple[float, float, float]
"""P50, P95 and P99, in milliseconds."""


class Slot(msgspec.Struct, frozen=True):
    """One slot of one modality. ``start`` is in Unix seconds; ``requests`` counts those that reached a first token, ``series`` has the
    percentiles of their times to first token (``ttft``), of each stage that happened, and of what no stage covers.
    """

    start: float
    requests: int
    series: dict[str, Percentiles]


class Recent(msgspec.Struct, frozen=True):
    """One modality: ``whole`` is all that its ``slots`` are, as one. ``slowest`` are the lines of its slowest requests, slowest first."""

    whole: Slot
    slots: tuple[Slot, ...]
    slowest: tuple[RequestLine, ...]


class _Times:
    """Times of one modality in one stretch of time, by series."""

    __slots__ = ("buckets", "requests", "start")

    def __init__(self, start: float) -> None:
        self.start = start
        self.requests = 0
        self.buckets: dict[str, array[int]] = {}

    def add(self, name: str, ms: float) -> None:
        counts = self.buckets.get(name)
        if counts is None:
            counts = self.buckets[name] = array("L", bytes(array("L").itemsize * _BUCKETS))
        counts[_bucket(ms)] += 1

    def put_in(self, other: _Times) -> None:
        self.requests += other.requests
        for name, more in other.buckets.items():
            counts = self.buckets.get(name)
            self.buckets[name] = array("L", more if counts is None else map(add, counts, more))

    def take_out(self, other: _Times) -> None:
        self.requests -= other.requests
        for name, gone in other.buckets.items():
            counts = self.buckets[name]
            for index, number in enumerate(gone):
                counts[index] -= number

    def told(self) -> Slot:
        return Slot(
            round(self.start, 3),
            self.requests,
            {name: _percentiles(self.buckets[name]) for name in SERIES if any(self.buckets.get(name, ()))},
        )


class _Stretch:
    """The slowest requests that ended in one stretch of time: a heap whose first is the least slow."""

    __slots__ = ("heap", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.heap: list[tuple[float, int, RequestLine]] = []


class _Modality:
    def __init__(self) -> None:
        self.whole = _Times(0.0)
        """All slots that are closed, as one."""
        self.open: _Times | None = None
        self.closed: deque[tuple[_Times, Slot]] = deque()
        self.slowest: deque[_Stretch] = deque()


class RecentRequests:
    """Takes requests as they end. ``wall`` gives Unix seconds. Lives on the event loop."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._noted = 0
        self._of: dict[str, _Modality] = {name: _Modality() for name in get_args(Modality)}

    def note(self, record: LedgerRecord) -> None:
        """Count a request that has ended, and keep it if it is one of the slowest. What was only estimated is no one's latency."""
        found = self._of.get(record.modality)
        if found is None or record.outcome == "estimated":
            return
        now, breakdown = self._wall(), record.breakdown
        self._turn(found, now)
        if breakdown.ttft_ms is not None:
            if found.open is None:
                found.open = _Times(math.floor(now / SLOT_SECONDS) * SLOT_SECONDS)
            found.open.requests += 1
            found.open.add(TTFT, breakdown.ttft_ms)
            found.open.add(UNATTRIBUTED, breakdown.unattributed_ms)
            for stage, ms in breakdown.stages.items():
                found.open.add(stage, ms)
        self._keep(found, record, now)

    def report(self) -> dict[Modality, Recent]:
        """Return the last half hour of each modality."""
        now = self._wall()
        return {name: self._told(self._of[name], now) for name in get_args(Modality)}

    def _told(self, found: _Modality, now: float) -> Recent:
        self._turn(found, now)
        slots = [slot for _, slot in found.closed]
        whole = _Times(0.0)
        whole.put_in(found.whole)
        if found.open is not None:
            slots.append(found.open.told())
            whole.put_in(found.open)
        kept = heapq.nlargest(SLOWEST, (entry for stretch in found.slowest for entry in stretch.heap))
        return Recent(whole.told(), tuple(slots), tuple(made for _, _, made in kept))

    def _turn(self, found: _Modality, now: float) -> None:
        """Close the slot that is over, and forget what is too old. A wall clock that was set back closes nothing early."""
        if found.open is not None and now >= found.open.start + SLOT_SECONDS:
            found.closed.append((found.open, found.open.told()))
            found.whole.put_in(found.open)
            found.open = None
        oldest = now - SLOT_SECONDS * SLOTS
        while found.closed and (found.closed[0][0].start <= oldest or len(found.closed) > SLOTS):
            found.whole.take_out(found.closed.popleft()[0])
        while found.slowest and found.slowest[0].number <= math.floor(now / KEPT_SECONDS) - _STRETCHES:
            found.slowest.popleft()

    def _keep(self, found: _Modality, record: LedgerRecord, now: float) -> None:
        number = math.floor(now / KEPT_SECONDS)
        if not found.slowest or found.slowest[-1].number < number:
            found.slowest.append(_Stretch(number))
        heap = found.slowest[-1].heap
        weight = record.breakdown.total_ms if record.breakdown.ttft_ms is None else record.breakdown.ttft_ms
        if len(heap) >= SLOWEST and weight <= heap[0][0]:
            return
        self._noted += 1
        entry = (weight, self._noted, line(record, now, items_max=ITEMS))
        if len(heap) < SLOWEST:
            heapq.heappush(heap, entry)
        else:
            heapq.heapreplace(heap, entry)


def _bucket(ms: float) -> int:
    return bisect_right(_BOUNDS, ms)


def _percentiles(counts: array[int]) -> Percentiles:
    """Return the middles of the buckets that the quantiles lie in. There is at least one observation."""
    total, reached = sum(counts), 0
    wanted: Iterator[float] = iter(QUANTILES)
    rank = next(wanted) * total
    found: list[float] = []
    for index, number in enumerate(counts):
        reached += number
        while len(found) < len(QUANTILES) and reached >= rank and reached:
            found.append(round(_LEAST_MS * 10 ** ((index + 0.5) / _PER_DECADE), 4))
            rank = next(wanted, math.inf) * total
    p50, p95, p99 = found
    return p50, p95, p99
