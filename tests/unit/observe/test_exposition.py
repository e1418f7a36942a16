"""The text is what prometheus_client itself writes of the same numbers, to the byte."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from foveate.bench.observing import every_series
from foveate.observe.exposition import line_start
from foveate.observe.labels import Label, Metric
from foveate.observe.metrics import Metrics
from foveate.observe.table import METRICS

AWKWARD = 'of\n"three" \\ kinds'


class TheLibrarys(Collector):
    """The families of a text that was read, for the library to write them."""

    def __init__(self, text: str) -> None:
        self.read = {family.name: family for family in text_string_to_metric_families(text)}

    def collect(self) -> Iterator[Family]:
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        for metric in METRICS:
            family = kinds[metric.kind](metric.name, metric.help, labels=[label.name for label in metric.labels])
            family.samples = self.read[family.name].samples
            yield family


def test_every_series_as_the_library_writes_it() -> None:
    metrics = every_series()
    for value in (0.00004, 0.3, 1e3):
        metrics.observe("foveate_ttft_seconds", "text", "agg", value=value)
    for value in (1 / 3, 1e6, 123_456_789, 1e21):
        metrics.count("foveate_spent_fetch_bytes_total", "text", amount=value)
    metrics.observe_many("foveate_inter_token_seconds", "text", "agg", counts=[0, 1_234_567], total=2e7)
    metrics.bind("foveate_upstream_up", lambda: {AWKWARD: 1.0, "b": float("nan"), "c": float("-inf")})
    text = metrics.exposition()[0]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TheLibrarys(text.decode()))
    assert text == generate_latest(registry)


def test_no_series_no_sample() -> None:
    lines = Metrics().exposition()[0].decode().splitlines()
    bare = {metric.name for metric in METRICS if not metric.labels and not metric.read}
    assert {line.split(" ")[0] for line in lines if not line.startswith("#") and "_bucket" not in line} == {
        name
        for metric in METRICS
        if metric.name in bare
        for name in ((f"{metric.name}_count", f"{metric.name}_sum") if metric.kind == "histogram" else (metric.name,))
    }


def test_labels_are_escaped() -> None:
    metric = Metric("s", "foveate_x", "gauge", "h", (Label("of", settings="names"), Label("b", ("c",))))
    assert line_start(metric, (AWKWARD, "c")) == 'foveate_x{b="c",of="of\\n\\"three\\" \\\\ kinds"} '
