"""The metrics of one server: made from the table, counted or read, and rendered for Prometheus.

Its registry is its own, so two servers in one process do not mix. What other parts already count (caches, arena,
workers) is not counted again: :meth:`Metrics.bind` names a function that is asked at scrape time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from foveate.decisions.eviction import CacheStats
from foveate.observe.table import METRICS, CacheName, Metric

C = TypeVar("C", Counter, Gauge, Histogram)

Reading = float | Mapping[str, float]
"""What a bound function returns: a number, or for a metric with one label a number for each of the label's values."""


class Metrics:
    """All metrics of the table.

    Methods raise KeyError for a name, and ValueError for a label value, that the table does not have.
    """

    def __init__(self) -> None:
        # The time each series was made is of no use here and would add a line to every one of them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        self._table = {metric.name: metric for metric in METRICS}
        self._counters: dict[tuple[str, ...], Counter] = {}
        self._gauges: dict[tuple[str, ...], Gauge] = {}
        self._histograms: dict[tuple[str, ...], Histogram] = {}
        self._parents: dict[str, Counter | Gauge | Histogram] = {
            metric.name: self._made(metric) for metric in METRICS if not metric.read
        }
        self._sources = _Sources()
        self._registry.register(self._sources)

    def count(self, name: str, *labels: str, amount: float = 1) -> None:
        """Add to a counter."""
        key = (name, *labels)
        child = self._counters.get(key)
        if child is None:
            child = self._counters[key] = self._child(key, Counter)
        child.inc(amount)

    def move(self, name: str, *labels: str, by: float) -> None:
        """Add to a gauge, or take from it."""
        key = (name, *labels)
        child = self._gauges.get(key)
        if child is None:
            child = self._gauges[key] = self._child(key, Gauge)
        child.inc(by)

    def observe(self, name: str, *labels: str, value: float) -> None:
        """Add an observation to a histogram."""
        key = (name, *labels)
        child = self._histograms.get(key)
        if child is None:
            child = self._histograms[key] = self._child(key, Histogram)
        child.observe(value)

    def bind(self, name: str, read: Callable[[], Reading]) -> None:
        """Have a metric that the table marks as read answered by ``read``.

        It may be called from any thread, and must not wait.
        """
        metric = self._table[name]
        if not metric.read:
            raise ValueError(f"{name} is counted, not read")
        self._sources.reads[metric] = read

    def bind_cache(self, cache: CacheName, stats: Callable[[], CacheStats]) -> None:
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
        bind("evictions_total", lambda now: {reason: float(number) for reason, number in now.evictions.items()})
        bind("oversize_refusals_total", lambda now: now.oversize)
        bind("crowded_refusals_total", lambda now: now.crowded)
        bind("saved_seconds_total", lambda now: {stage: ms / 1e3 for stage, ms in now.saved_ms.items()})

    def unbound(self) -> list[str]:
        """Return the metrics that are to be read and that nobody has bound: the wiring's to-do list, empty in a whole
        server.
        """
        return [metric.name for metric in METRICS if metric.read and metric not in self._sources.reads]

    def exposition(self) -> tuple[bytes, str]:
        """Render everything; return the body and its content type.

        Takes tens of milliseconds, so call it from a thread, never on the event loop.
        """
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def _made(self, metric: Metric) -> Counter | Gauge | Histogram:
        names = [label.name for label in metric.labels]
        if metric.kind == "histogram":
            return Histogram(metric.name, metric.help, names, registry=self._registry, buckets=metric.buckets)
        kind = Counter if metric.kind == "counter" else Gauge
        return kind(metric.name, metric.help, names, registry=self._registry)

    def _child(self, key: tuple[str, ...], kind: type[C]) -> C:
        """Return the series of a name and its label values. Raises TypeError when the metric is of another kind."""
        name, *values = key
        parent = self._parents[name]
        if not isinstance(parent, kind):
            raise TypeError(f"{name} is a {self._table[name].kind}")
        labels = _closed(self._table[name], tuple(values))
        return parent.labels(*labels) if labels else parent


class _Sources(Collector):
    """The metrics that are read at scrape time."""

    def __init__(self) -> None:
        self.reads: dict[Metric, Callable[[], Reading]] = {}

    def collect(self) -> Iterator[Family]:
        for metric, read in tuple(self.reads.items()):
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=[label.name for label in metric.labels])
            reading = read()
            if isinstance(reading, Mapping):
                for value, number in reading.items():
                    family.add_metric([_closed(metric, (value,))[0]], number)
            else:
                family.add_metric([], reading)
            yield family


def _closed(metric: Metric, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``values`` if the table allows them as the metric's label values. Raises ValueError otherwise."""
    if len(values) != len(metric.labels):
        raise ValueError(f"{metric.name} has {len(metric.labels)} labels, not {len(values)}")
    for label, value in zip(metric.labels, values, strict=True):
        if value not in label.values:
            raise ValueError(f"{metric.name}: {value!r} is not a value of {label.name}")
    return values
