from __future__ import annotations

import re
from pathlib import Path

from foveate.core.errors import error_classes
from foveate.core.stages import STAGES
from foveate.observe.labels import CODE, STAGE
from foveate.observe.table import METRICS, page

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m foveate.observe.table > docs/metrics.md"


def test_names_are_unique_and_end_in_their_unit() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"foveate_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith(".")


def test_label_values_are_the_closed_sets_of_core() -> None:
    assert STAGE.values == STAGES
    assert set(CODE.values) <= set(error_classes())
    assert "engine_failed" in CODE.values
    for metric in METRICS:
        for label in metric.labels:
            assert label.values or label.settings
            assert len(set(label.values)) == len(label.values)


def test_buckets_rise_and_only_histograms_have_them() -> None:
    for metric in METRICS:
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_stage_buckets_reach_from_half_a_millisecond_to_a_minute() -> None:
    stage = next(metric for metric in METRICS if metric.name == "foveate_stage_seconds")
    assert (stage.buckets[0], stage.buckets[-1]) == (0.0005, 60.0)


def test_the_caches_are_two_families_and_no_ratio_joins_them() -> None:
    families = {
        name: {m.name.removeprefix(f"foveate_{name}_cache_") for m in METRICS if f"_{name}_cache_" in m.name}
        for name in ("processor", "encoder")
    }
    assert families["processor"] == families["encoder"]
    assert {"hits_total", "misses_total", "saved_seconds_total", "bytes"} <= families["encoder"]
    assert not [metric.name for metric in METRICS if "ratio" in metric.name]
