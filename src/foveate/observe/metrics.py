"""The metrics of one server: kept by the table, counted or read, and rendered for Prometheus.

Nothing is global, so two servers in one process do not mix. What other parts already count (caches, arena, workers) is
not counted again: :meth:`Metrics.bind` names a function that is asked at scrape time.

The numbers are plain Python values that are written out at scrape time (:mod:`foveate.observe.exposition`). prometheus_client's
metric objects lock on every observation, which measured three times as slow, twenty-five times a request, on the event loop.
Counting therefore belongs to one thread (the loop's); a scrape may run in another and sees each number whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from foveate.decisions.eviction import CacheStats
from foveate.observe.exposition import CONTENT_TYPE, bucket_starts, header, line_start, number
from foveate.observe.labels import CacheGroup, Metric
from foveate.observe.table import METRICS

Reading = float | Mapping[str, float] | Mapping[tuple[str, ...], float]
"""What a bound function returns: a number; for a metric with one label a number for each of its values; with several, for each tuple."""


class _Number:
    """One series of a counter or a gauge."""

    __slots__ = ("start", "value")

    def __init__(self, metric: Metric, labels: Sequence[str]) -> None:
        self.start = line_start(metric, labels)
        self.value = 0.0


class _Distribution:
    """One series of a histogram: observations by bucket (not cumulative), the last one being +Inf."""

    __slots__ = ("bounds", "counts", "labels", "starts", "sum")

    def __init__(self, metric: Metric, labels: tuple[str, ...]) -> None:
        self.labels = labels
        self.starts = bucket_starts(metric, labels)
        self.bounds = metric.buckets
        self.counts = [0] * (len(metric.buckets) + 1)
        self.sum = 0.0

    def lines(self) -> str:
        """Return its lines, counts being cumulative as Prometheus has it."""
        total = 0
        numbers: list[str] = []
        for count in self.counts.copy():
            total += count
            numbers.append(number(total) if count or not numbers else numbers[-1])
        numbers += (numbers[-1], number(self.sum))
        return "".join([f"{start}{text}\n" for start, text in zip(self.starts, numbers, strict=True)])


class Metrics:
    """All metrics of the table.

    Methods raise KeyError for a name, ValueError for a label value that the table does not have, and TypeError for a
    metric of another kind.
    """

    def __init__(self) -> None:
        self._table = {metric.name: metric for metric in METRICS}
        self._numbers: dict[tuple[str, ...], _Number] = {}
        self._distributions: dict[tuple[str, ...], _Distribution] = {}
        self._counted: dict[str, list[tuple[tuple[str, ...], _Number]]] = {metric.name: [] for metric in METRICS}
        self._observed: dict[str, list[_Distribution]] = {metric.name: [] for metric in METRICS}
        self._reads: dict[str, Callable[[], Reading]] = {}
        self.waits = False
        """Whether something bound may wait, for a driver say."""
        for metric in METRICS:
            if not metric.labels and not metric.read:
                self._new((metric.name,), metric.kind)

    def count(self, name: str, *labels: str, amount: float = 1) -> None:
        """Add ``amount`` (not negative) to a counter."""
        key = (name, *labels)
        number = self._numbers.get(key)
        if number is None:
            self._new(key, "counter")
            number = self._numbers[key]
        number.value += amount

    def move(self, name: str, *labels: str, by: float) -> None:
        """Add to a gauge, or take from it."""
        key = (name, *labels)
        number = self._numbers.get(key)
        if number is None:
            self._new(key, "gauge")
            number = self._numbers[key]
        number.value += by

    def observe(self, name: str, *labels: str, value: float) -> None:
        """Add an observation to a histogram."""
        key = (name, *labels)
        series = self._distributions.get(key)
        if series is None:
            self._new(key, "histogram")
            series = self._distributions[key]
        series.counts[bisect_left(series.bounds, value)] += 1
        series.sum += value

    def observe_many(self, name: str, *labels: str, counts: Sequence[int], total: float) -> None:
        """Add observations that were counted in the histogram's own buckets before; ``total`` is their sum."""
        key = (name, *labels)
        series = self._distributions.get(key)
        if series is None:
            self._new(key, "histogram")
            series = self._distributions[key]
        for index, count in enumerate(counts):
            series.counts[index] += count
        series.sum += total

    def bind(self, name: str, read: Callable[[], Reading], *, waits: bool = False) -> None:
        """Have a metric that the table marks as read answered by ``read``.

        It may be called from any thread, and must not wait unless ``waits`` says that it does. Raises ValueError when the metric is
        counted here.
        """
        if not self._table[name].read:
            raise ValueError(f"{name} is counted, not read")
        self.waits = self.waits or waits
        self._reads[name] = read

    def bind_cache(self, cache: CacheGroup, stats: Callable[[], CacheStats]) -> None:
        """Bind one cache's whole family to its ``stats``."""

        def bind(name: str, read: Callable[[CacheStats], Reading]) -> None:
            self.bind(f"foveate_{cache}_cache_{name}", lambda: read(stats()))

        bind("entries", lambda now: now.entries)
        bind("pinned_entries", lambda now: now.pinned)
        bind("bytes", lambda now: now.bytes)
        bind("capacity_bytes", lambda now: now.capacity_bytes)
        bind("hits_total", lambda now: now.hits)
        bind("misses_total", lambda now: now.misses)
        bind("shared_flights_total", lambda now: now.shared)
        bind("evictions_total", lambda now: {str(reason): float(number) for reason, number in now.evictions.items()})
        bind("oversize_refusals_total", lambda now: now.oversize)
        bind("crowded_refusals_total", lambda now: now.crowded)
        bind("saved_seconds_total", lambda now: {str(stage): ms / 1e3 for stage, ms in now.saved_ms.items()})

    def unbound(self) -> list[str]:
        """Return the metrics to be read that nobody has bound: the wiring's to-do list, empty in a whole server."""
        return [metric.name for metric in METRICS if metric.read and metric.name not in self._reads]

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the series of a counter or gauge, by their labels' values in the order of the table."""
        metric = self._table[name]
        if metric.kind == "histogram":
            raise TypeError(f"{name} is a histogram")
        return self._values(metric)

    def sums(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the sum of a histogram's observations, by its labels' values: what a counter of the same amounts would say."""
        if self._table[name].kind != "histogram":
            raise TypeError(f"{name} is no histogram")
        return {series.labels: series.sum for series in self._observed[name].copy()}

    def exposition(self) -> tuple[bytes, str]:
        """Render everything in the order of the table; return the body and its content type. A bound function's error passes through.

        Takes a few milliseconds of processor time. Call it from a thread where it :attr:`waits`.
        """
        parts: list[str] = []
        for metric in METRICS:
            parts.append(header(metric))
            if metric.kind == "histogram":
                parts += [series.lines() for series in self._observed[metric.name].copy()]
            elif metric.read:
                for labels, value in self._values(metric).items():
                    parts.append(f"{line_start(metric, labels)}{number(value)}\n")
            else:
                parts += [f"{one.start}{number(one.value)}\n" for _, one in self._counted[metric.name].copy()]
        return "".join(parts).encode(), CONTENT_TYPE

    def _values(self, metric: Metric) -> dict[tuple[str, ...], float]:
        if not metric.read:
            return {labels: one.value for labels, one in self._counted[metric.name].copy()}
        if metric.name not in self._reads:
            return {}
        reading = self._reads[metric.name]()
        found: dict[tuple[str, ...], float] = (
            {(key,) if isinstance(key, str) else key: value for key, value in reading.items()}
            if isinstance(reading, Mapping)
            else {(): reading}
        )
        for labels in found:
            _check(metric, labels)
        return found

    def _new(self, key: tuple[str, ...], kind: str) -> None:
        """Begin a series, if the table has it."""
        metric = self._table[key[0]]
        if metric.kind != kind or metric.read:
            raise TypeError(f"{metric.name} is a {metric.kind}{' that is read' if metric.read else ''}, not a {kind}")
        _check(metric, key[1:])
        if kind == "histogram":
            self._distributions[key] = series = _Distribution(metric, key[1:])
            self._observed[metric.name].append(series)
        else:
            self._numbers[key] = one = _Number(metric, key[1:])
            self._counted[metric.name].append((key[1:], one))


def _check(metric: Metric, values: tuple[str, ...]) -> None:
    """Raise ValueError unless the table allows ``values`` as the metric's label values."""
    if len(values) != len(metric.labels):
        raise ValueError(f"{metric.name} has {len(metric.labels)} labels, not {len(values)}")
    for label, value in zip(metric.labels, values, strict=True):
        if value not in label.values and not label.settings:
            raise ValueError(f"{metric.name}: {value!r} is not a value of {label.name}")
