"""The rules, alerts and dashboard that ship: judged by promtool, and against the metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.prometheus import ROOT, program

from foveate.observe.table import METRICS

RULES = [ROOT / "deploy" / "prometheus" / name for name in ("recording.yml", "alerts.yml")]
DASHBOARD = ROOT / "deploy" / "grafana" / "foveate.json"


def exposed() -> set[str]:
    """Return every name that a scrape may bring."""
    names: set[str] = set()
    for metric in METRICS:
        names |= (
            {f"{metric.name}{end}" for end in ("_bucket", "_sum", "_count")}
            if metric.kind == "histogram"
            else {metric.name}
        )
    return names


def rules() -> list[dict[str, Any]]:
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def unknown(expression: str) -> set[str]:
    """Return the names in an expression that are neither metrics nor recorded."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    return set(re.findall(r"\bfoveate[:_][a-zA-Z0-9_:]+", expression)) - exposed() - recorded


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def test_rules_and_configuration_are_valid() -> None:
    for arguments in (("check", "rules", *RULES), ("check", "config", ROOT / "deploy/prometheus/prometheus.yml")):
        done = run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_rules_compute_what_they_say_and_alerts_begin_and_end() -> None:
    done = run("test", "rules", ROOT / "tests/deploy/rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_query_names_an_existing_metric() -> None:
    expressions = [rule["expr"] for rule in rules()] + queries()
    assert len(expressions) > 60
    for expression in expressions:
        assert re.search(r"\bfoveate[:_]", expression)
        assert not unknown(expression), expression
    assert unknown("rate(foveate_ttft_seconds_bucket[5m]) + foveate_no_such_metric") == {"foveate_no_such_metric"}


def test_what_alerts_tell_to_look_at_exists() -> None:
    for rule in rules():
        for text in rule.get("annotations", {}).values():
            assert not unknown(text), text


def test_dashboard_queries_are_valid_expressions(tmp_path: Path) -> None:
    as_rules = [{"record": f"q{number}", "expr": text.replace("$job", "f")} for number, text in enumerate(queries())]
    written = tmp_path / "queries.yml"
    written.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": as_rules}]}))
    done = run("check", "rules", written)
    assert done.returncode == 0, done.stdout + done.stderr
    as_rules[0]["expr"] += " by ("
    written.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": as_rules}]}))
    assert run("check", "rules", written).returncode != 0


def test_dashboard_is_whole() -> None:
    shown = panels()
    ids = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(panel["title"] and panel["targets"] for panel in shown)
    assert {"text", "multimodal"} <= set(re.findall(r'modality="(\w+)"', " ".join(queries())))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in shown]
    assert len(set(places)) == len(places), "no panel covers another"


@pytest.mark.parametrize("stage_metric", ["stage_seconds", "ttft_seconds"])
@pytest.mark.parametrize("percentile", ["p50", "p95", "p99"])
def test_percentiles_by_stage_and_modality(stage_metric: str, percentile: str) -> None:
    (rule,) = [rule for rule in rules() if rule.get("record") == f"foveate:{stage_metric}:{percentile}"]
    assert "modality" in rule["expr"]
