from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from foveate.decisions.eviction import EVICTION_REASONS, CacheStats
from foveate.observe.metrics import Metrics
from foveate.observe.records import TokenGaps
from foveate.observe.table import METRICS


def scrape(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and its label values in the order of the labels, read by Prometheus's parser."""
    body, content_type = metrics.exposition()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_counters_gauges_and_histograms() -> None:
    metrics = Metrics()
    metrics.count("foveate_requests_total", "text", "answered")
    metrics.count("foveate_requests_total", "text", "answered", amount=2)
    metrics.move("foveate_requests_in_flight", "text", by=2)
    metrics.move("foveate_requests_in_flight", "text", by=-1)
    for value in (0.0004, 0.0005, 0.3, 1000.0):
        metrics.observe("foveate_ttft_seconds", "text", "agg", value=value)
    found = scrape(metrics)
    assert found["foveate_requests_total", ("text", "answered")] == 3
    assert found["foveate_requests_in_flight", ("text",)] == 1
    assert found["foveate_ttft_seconds_count", ("text", "agg")] == 4
    assert found["foveate_ttft_seconds_sum", ("text", "agg")] == pytest.approx(1000.3009)
    assert found["foveate_ttft_seconds_bucket", ("0.0005", "text", "agg")] == 2
    assert found["foveate_ttft_seconds_bucket", ("0.2", "text", "agg")] == 2
    assert found["foveate_ttft_seconds_bucket", ("0.5", "text", "agg")] == 3
    assert found["foveate_ttft_seconds_bucket", ("60.0", "text", "agg")] == 3
    assert found["foveate_ttft_seconds_bucket", ("+Inf", "text", "agg")] == 4


def test_observations_that_were_counted_before() -> None:
    metrics = Metrics()
    gaps = TokenGaps()
    gaps.note(0.03, 3)
    gaps.note(100.0, 1)
    for _ in range(2):
        name = "foveate_inter_token_seconds"
        metrics.observe_many(name, "text", "agg", counts=gaps.counts, total=gaps.seconds)
    found = scrape(metrics)
    assert found["foveate_inter_token_seconds_count", ("text", "agg")] == 8
    assert found["foveate_inter_token_seconds_sum", ("text", "agg")] == pytest.approx(200.06)
    assert found["foveate_inter_token_seconds_bucket", ("0.005", "text", "agg")] == 0
    assert found["foveate_inter_token_seconds_bucket", ("0.01", "text", "agg")] == 6
    assert found["foveate_inter_token_seconds_bucket", ("5.0", "text", "agg")] == 6


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda m: m.count("foveate_requests_total", "text", "nonsense"), ValueError),
        (lambda m: m.count("foveate_requests_total", "text"), ValueError),
        (lambda m: m.count("foveate_errors_total", "a code from a client"), ValueError),
        (lambda m: m.observe("foveate_requests_total", "text", "answered", value=1.0), TypeError),
        (lambda m: m.count("foveate_requests_in_flight", "text"), TypeError),
        (lambda m: m.count("foveate_encoder_cache_hits_total"), TypeError),
        (lambda m: m.count("foveate_unheard_of"), KeyError),
        (lambda m: m.sums("foveate_requests_total"), TypeError),
        (lambda m: m.bind("foveate_requests_total", lambda: 1), ValueError),
        (lambda m: m.bind("foveate_unheard_of", lambda: 1), KeyError),
    ],
)
def test_what_the_table_does_not_have_is_refused(wrong: Callable[[Metrics], None], error: type[Exception]) -> None:
    metrics = Metrics()
    before = metrics.exposition()
    with pytest.raises(error):
        wrong(metrics)
    assert metrics.exposition() == before


def test_bound_values_are_read_at_scrape_time() -> None:
    metrics = Metrics()
    used = 5
    metrics.bind("foveate_arena_used_bytes", lambda: used)
    assert scrape(metrics)["foveate_arena_used_bytes", ()] == 5
    used = 7
    assert scrape(metrics)["foveate_arena_used_bytes", ()] == 7


def test_one_that_waits_is_known() -> None:
    metrics = Metrics()
    metrics.bind("foveate_arena_used_bytes", lambda: 1)
    assert not metrics.waits
    metrics.bind("foveate_gpu_utilisation", dict, waits=True)
    metrics.bind("foveate_arena_capacity_bytes", lambda: 1)
    assert metrics.waits


def test_a_bound_label_value_outside_the_set_is_refused() -> None:
    metrics = Metrics()
    metrics.bind("foveate_encoder_cache_evictions_total", lambda: {"whim": 1.0})
    with pytest.raises(ValueError, match="whim"):
        metrics.exposition()


def test_a_cache_fills_its_own_family_only() -> None:
    stats = CacheStats(
        entries=1, bytes=2, capacity_bytes=3, pinned=4, hits=5, misses=6, shared=7, oversize=8, crowded=9,
        evictions=dict.fromkeys(EVICTION_REASONS, 10), saved_ms={"vision_encode": 1500.0},
    )  # fmt: skip
    metrics = Metrics()
    metrics.bind_cache("encoder", lambda: stats)
    found = scrape(metrics)
    family = {
        name.removeprefix("foveate_encoder_cache_"): value for (name, _), value in found.items() if "cache" in name
    }
    assert family == {
        "entries": 1, "bytes": 2, "capacity_bytes": 3, "pinned_entries": 4, "hits_total": 5, "misses_total": 6,
        "shared_flights_total": 7, "oversize_refusals_total": 8, "crowded_refusals_total": 9, "evictions_total": 10,
        "saved_seconds_total": 1.5,
    }  # fmt: skip
    assert not [name for name, _ in found if "processor_cache" in name]


def test_unbound_names_what_the_wiring_forgot() -> None:
    metrics = Metrics()
    to_read = [metric for metric in METRICS if metric.read]
    assert metrics.unbound() == [metric.name for metric in to_read]
    for metric in to_read:
        metrics.bind(metric.name, lambda: {} if metric.labels else 0)  # noqa: B023
    assert metrics.unbound() == []


def test_two_servers_in_one_process_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    one.count("foveate_requests_total", "text", "answered")
    assert ("foveate_requests_total", ("text", "answered")) not in scrape(other)


def test_every_family_has_help_and_type() -> None:
    body, _ = Metrics().exposition()
    for metric in METRICS:
        assert f"# HELP {metric.name} {metric.help}" in body.decode()
        assert f"# TYPE {metric.name} {metric.kind}" in body.decode()
