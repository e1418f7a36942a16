"""A real Prometheus scrapes a running server, with the rules that ship."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.blackbox.pictures import ask, chat, one, url_of, user
from tests.blackbox.replies import content
from tests.blackbox.server import Server, eventually, free_port
from tests.prometheus import ROOT, program

from foveate.observe.table import METRICS

CHAT = "/v1/chat/completions"
Query = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def query(server: Server, tmp_path: Path) -> Iterator[Query]:
    """Scrape every second; return a function that asks Prometheus."""
    rules = [str(ROOT / "deploy" / "prometheus" / name) for name in ("recording.yml", "alerts.yml")]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": rules,
        "scrape_configs": [{"job_name": "foveate", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def asked(expression: str) -> list[dict[str, Any]]:
        assert process.poll() is None, (tmp_path / "prometheus.log").read_text()
        try:
            reply = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": expression}, timeout=30)
        except httpx.TransportError:
            return []
        return list(reply.json()["data"]["result"]) if reply.status_code == 200 else []

    try:
        yield asked
    finally:
        process.terminate()
        process.wait(30)


def test_prometheus_scrapes_and_its_rules_name_the_stages(query: Query, server: Server, http: httpx.Client) -> None:
    def ask_both(seed: int) -> None:
        content(http.post(CHAT, json=chat(user("Hello!"))))
        content(http.post(CHAT, json=ask(url_of(one("red", "circle", seed=seed)))))

    def recorded(stage: str, modality: str) -> bool:
        found = query(f'foveate:stage_seconds:p95{{stage="{stage}", modality="{modality}"}}')
        return bool(found) and float(found[0]["value"][1]) > 0

    ask_both(70_001)
    eventually("a scrape", lambda: query("up == 1"))
    eventually("its first samples", lambda: query('foveate_ttft_seconds_count{modality="multimodal"}'))
    # A rate needs a count that grows between two scrapes.
    ask_both(70_002)
    for stage, modality in (("vision_encode", "multimodal"), ("llm_prefill", "multimodal"), ("llm_prefill", "text")):
        eventually(f"the percentile of {stage}, {modality}", lambda: recorded(stage, modality))  # noqa: B023
    assert not query('foveate:stage_seconds:p95{stage="vision_encode", modality="text"}')
    assert query('foveate:ttft_seconds:p99{modality="text"}')
    names = {sample["metric"]["__name__"] for sample in query('{job="foveate"}')}
    plain = [metric for metric in METRICS if metric.kind != "histogram" and not metric.labels]
    missing = {metric.name for metric in plain if "absent before" not in metric.help} - names
    assert not missing, "metrics without labels are there from the start"
    assert not query("ALERTS{alertname='FoveateEngineDown'}")
