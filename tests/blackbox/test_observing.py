"""One slow request in its caller's trace, item by item; what two calls cost, and what the objectives say (each stage: test_slow_stages)."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from tests.blackbox.origins import Origin, body, delayed
from tests.blackbox.pictures import DESCRIBE, chat, data_url, encoded, image, one, user
from tests.blackbox.replies import STAGES, content
from tests.blackbox.server import Server, eventually
from tests.otlp import Receiver
from typer.testing import CliRunner

from foveate.cli.main import app

CHAT = "/v1/chat/completions"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def slow_and_quick(http: httpx.Client, web: Origin) -> str:
    """Ask about one picture from a slow origin and one that comes along; return the request's id."""
    web.pages["/slow.png"] = delayed(1.0, body(encoded(one("green", "star", seed=80_001))))
    parts = (image(f"{web.url}/slow.png"), image(data_url(encoded(one("red", "circle", seed=80_002)))))
    reply = http.post(CHAT, json=chat(user(*parts, DESCRIBE)), headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    content(reply)
    return str(reply.json()["id"])


def test_everything_names_the_stage_that_was_slow(
    http: httpx.Client, server: Server, web: Origin, collector: Receiver, tmp_path: Path
) -> None:
    server.wait_told()
    before = len(server.records())
    request_id = slow_and_quick(http, web)
    record = server.record(request_id)
    slowest = max(STAGES, key=lambda stage: record.get(f"{stage}_ms") or 0)
    assert slowest == "media_fetch"
    assert len(record["starts_ms"]) == sum(record.get(f"{stage}_ms") is not None for stage in STAGES)
    assert record["starts_ms"] == sorted(record["starts_ms"])

    shown = CliRunner().invoke(app, ["log", "show", request_id, "--file", str(server.request_log)]).stdout
    bars = sorted((row for row in shown.splitlines() if "█" in row), key=lambda row: row.count("█"))
    # Both pictures waited for the late one, so two bars are as long; which of them is on the critical path is chance.
    assert "media_fetch" in bars[-1]
    assert "media_fetch *" in [row for row in bars if "*" in row][-1]
    own = tmp_path / "requests.jsonl"  # what other tests asked for before may have taken any time
    own.write_text("".join(f"{json.dumps(line)}\n" for line in server.records()[before:]))
    listed = CliRunner().invoke(app, ["log", "--slowest", "3", "--stage", "media_fetch", "--file", str(own)])
    assert request_id in listed.stdout

    spans = eventually("its trace", lambda: collector.trace_of(request_id))
    root, rest = spans[0], spans[1:]
    assert (root.trace_id, root.parent_id) == (TRACE, SPAN)
    assert root.attributes["foveate.ttft_ms"] == pytest.approx(record["ttft_ms"], abs=0.01)
    stages = [span for span in rest if span.name in STAGES]
    assert max(stages, key=lambda span: span.end - span.start).name == "media_fetch"
    assert {span.attributes["foveate.process"] for span in stages} == {"gateway", "media", "encoder", "engine"}
    items = {span.attributes["foveate.item"]: span for span in rest if span.name == "item"}
    # Both waited for the late one; which of them was ready last is chance.
    assert {index: item.attributes["foveate.critical"] for index, item in items.items()} == {
        index: index == record["critical"] for index in (0, 1)
    }
    for logged in record["items"]:
        own = [span for span in stages if span.parent_id == items[logged["index"]].span_id]
        for stage in ("media_decode", "mm_processor", "vision_encode"):
            took = sum(span.end - span.start for span in own if span.name == stage) * 1e3
            assert took == pytest.approx(logged[f"{stage}_ms"], abs=1)


def test_costs_of_two_calls_and_objectives(http: httpx.Client, server: Server) -> None:
    question = chat(user(image(data_url(encoded(one("blue", "star", seed=80_003)))), DESCRIBE))
    first, again = (http.post(CHAT, json=question).json()["id"] for _ in range(2))
    made, spared = server.record(first), server.record(again)
    assert min(made["media_cpu_ms"], made["processor_cpu_ms"], made["encoder_ms"], made["engine_token_ms"]) > 0
    assert (spared["encoder_ms"], spared["items"][0]["found"]) == (0, "encoder_cache")
    said = CliRunner().invoke(app, ["cost", first, again, "--file", str(server.request_log)]).stdout
    assert "found: encoder cache" in said
    assert "less of processors and devices" in said
    http.post(CHAT, json=chat(user("Hello!")))
    server.wait_idle()
    metrics = server.metrics()
    assert metrics.total("foveate_spent_encoder_seconds_total", modality="multimodal") > 0
    assert metrics.total("foveate_slo_requests_total", modality="text", objective="ttft", verdict="good") > 0
    assert metrics.total("foveate_slo_attainment", modality="text", window="5m") > 0
    assert not metrics.total("foveate_slo_requests_total", modality="multimodal")
    assert metrics.total("foveate_traces_dropped_total") == 0
