from __future__ import annotations

import json
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from foveate.core.errors import BodyTooLarge, HouseFull, Unauthenticated, UrlRefused
from foveate.core.stages import STAGES, Span
from foveate.observe.ledger import RequestLedger
from foveate.observe.metrics import Metrics
from foveate.observe.observer import KvPrefix, Observer
from foveate.observe.records import Outcome
from foveate.observe.request_log import RequestLog


def samples(metrics: Metrics) -> dict[str, float]:
    """Samples written as in a query, labels in the order of their names; buckets left out."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition()[0].decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={sample.labels[name]}" for name in sorted(sample.labels))
            if "le" not in sample.labels:
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def opened(observer: Observer, images: int) -> RequestLedger:
    ledger = RequestLedger(request_id="r", model="demo", received_at=10.0, images=images)
    observer.opened(ledger)
    ledger.span(Span("admission", 10.0, 10.1))
    for index in range(images):
        ledger.item(index).span(Span("media_decode", 10.1, 10.2 + index / 10))
        ledger.item(index).ready(10.2 + index / 10)
    return ledger


def answer(ledger: RequestLedger) -> None:
    ledger.span(Span("llm_prefill", 10.5, 11.0))
    ledger.first_token(11.0)
    ledger.output(1, 11.0)
    ledger.output(1, 11.25)


def test_prefill_that_ran_ahead_is_counted() -> None:
    metrics = Metrics()
    observer = Observer(metrics, None)
    ledger = opened(observer, images=2)
    ledger.prefilled_ahead([Span("llm_prefill", 10.2, 10.25)], 10.3)
    answer(ledger)
    observer.ended(ledger.end("answered", error_code=None, at=12.0))
    assert round(samples(metrics)["foveate_prefill_overlap_seconds_sum{topology=agg}"], 6) == 0.05


def test_an_answered_request_with_pictures() -> None:
    metrics = Metrics()
    observer = Observer(metrics, None)
    ledger = opened(observer, images=2)
    assert samples(metrics)["foveate_requests_in_flight{modality=multimodal}"] == 1
    answer(ledger)
    ledger.counts.pixels, ledger.counts.media_bytes, ledger.counts.visual_tokens = 100, 200, 30
    observer.ended(ledger.end("answered", error_code=None, at=12.0))
    found = samples(metrics)
    assert found["foveate_requests_in_flight{modality=multimodal}"] == 0
    assert found["foveate_requests_total{modality=multimodal,outcome=answered}"] == 1
    assert round(found["foveate_ttft_seconds_sum{modality=multimodal,topology=agg}"], 6) == 1.0
    assert round(found["foveate_request_seconds_sum{modality=multimodal,topology=agg}"], 6) == 2.0
    assert round(found["foveate_tpot_seconds_sum{modality=multimodal,topology=agg}"], 6) == 0.25
    assert round(found["foveate_stage_seconds_sum{modality=multimodal,stage=media_decode,topology=agg}"], 6) == 0.2
    assert round(found["foveate_item_stage_seconds_sum{stage=media_decode}"], 6) == 0.3
    assert round(found["foveate_inter_token_seconds_sum{modality=multimodal,topology=agg}"], 6) == 0.25
    assert found["foveate_inter_token_seconds_count{modality=multimodal,topology=agg}"] == 1
    assert found["foveate_images_total"] == 2
    assert found["foveate_request_frames_count"] == 0, "of videos only"
    assert found["foveate_request_pixels_sum"] == 100
    assert found["foveate_media_bytes_total"] == 200
    assert found["foveate_visual_tokens_total"] == 30
    assert found["foveate_output_tokens_total{modality=multimodal}"] == 2
    assert not [name for name in found if "modality=text" in name]
    stages = sum(
        found.get(f"foveate_stage_seconds_sum{{modality=multimodal,stage={stage},topology=agg}}", 0.0)
        for stage in STAGES
    )
    unattributed = found["foveate_unattributed_seconds_sum{modality=multimodal,topology=agg}"]
    assert round(stages + unattributed - found["foveate_ttft_seconds_sum{modality=multimodal,topology=agg}"], 9) == 0


def test_switched_off_it_counts_endings_and_refusals_alone(tmp_path: Path) -> None:
    metrics = Metrics()
    with RequestLog(tmp_path / "requests.jsonl") as log:
        observer = Observer(metrics, log, on=False)
        ledger = RequestLedger(request_id="r", model="demo", received_at=10.0, images=1, observed=observer.on)
        observer.opened(ledger)
        ledger.item(0).span(Span("media_decode", 10.1, 10.2))
        answer(ledger)
        assert ledger.server_timing() == ""
        record = ledger.end("answered", error_code=None, at=12.0)
        observer.ended(record)
        refused = opened(observer, images=1).end(
            "refused", error_code="too_many_images", limit_name="max_images", at=12
        )
        observer.ended(refused)
    assert (record.breakdown.ttft_ms, record.counts.output_tokens) == (1000.0, 2), "what a canary and an answer need"
    assert (record.spans, record.items[0].spans, record.gaps) == ((), (), None)
    changed = {name: value for name, value in samples(metrics).items() if value}
    assert changed == {
        "foveate_requests_total{modality=multimodal,outcome=answered}": 1,
        "foveate_requests_total{modality=multimodal,outcome=refused}": 1,
        "foveate_errors_total{code=too_many_images}": 1,
        "foveate_budget_rejections_total{limit=max_images}": 1,
    }
    assert observer.recent.report()["multimodal"].slots == ()


def test_a_text_request_leaves_no_trace_in_media_series() -> None:
    metrics = Metrics()
    observer = Observer(metrics, None)
    ledger = opened(observer, images=0)
    answer(ledger)
    observer.ended(ledger.end("answered", error_code=None, at=12.0))
    found = samples(metrics)
    assert found["foveate_ttft_seconds_count{modality=text,topology=agg}"] == 1
    assert found["foveate_request_images_count"] == 0
    assert not [name for name in found if "modality=multimodal" in name]


def test_a_request_without_a_first_token_adds_no_latency_but_its_error() -> None:
    metrics = Metrics()
    observer = Observer(metrics, None)
    endings: list[tuple[Outcome, str | None]] = [
        ("failed", "engine_failed"),
        ("failed", "unheard"),
        ("cancelled", None),
    ]
    for outcome, code in endings:
        observer.ended(opened(observer, images=1).end(outcome, error_code=code, at=12.0))
    found = samples(metrics)
    assert found["foveate_errors_total{code=engine_failed}"] == 1
    assert found["foveate_errors_total{code=internal_error}"] == 1
    assert found["foveate_requests_total{modality=multimodal,outcome=cancelled}"] == 1
    assert found["foveate_request_seconds_count{modality=multimodal,topology=agg}"] == 3
    assert not [name for name in found if name.startswith(("foveate_ttft", "foveate_stage"))]


def test_a_refusal_by_the_url_policy_is_counted_by_its_rule() -> None:
    metrics = Metrics()
    observer = Observer(metrics, None, topology="e-pd")
    observer.refused("r", (10.0, 11.0), UrlRefused("No (rule: loopback)."), None)
    observer.forbidden(UrlRefused("An upstream's own words."))
    observer.forbidden(None)
    observer.forbidden(HouseFull())
    name = "foveate_policy_refusals_total"
    found = samples(metrics)
    assert {each: value for each, value in found.items() if each.startswith(name)} == {f"{name}{{rule=loopback}}": 1}


def test_the_request_log_gets_every_ending(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with RequestLog(path) as log:
        observer = Observer(Metrics(), log)
        for outcome in ("answered", "refused", "overloaded", "failed", "cancelled"):
            observer.ended(opened(observer, images=1).end(outcome, error_code=None, at=12.0))  # type: ignore[arg-type]
    outcomes = [json.loads(line)["outcome"] for line in path.read_text().splitlines()]
    assert outcomes == ["answered", "refused", "overloaded", "failed", "cancelled"]


def test_a_rejection_is_counted_by_the_limit_that_the_client_was_told(tmp_path: Path) -> None:
    metrics = Metrics()
    path = tmp_path / "requests.jsonl"
    with RequestLog(path) as log:
        observer = Observer(metrics, log)
        observer.ended(
            opened(observer, images=1).end("refused", error_code="too_many_images", limit_name="max_images", at=12.0)
        )
        observer.refused("r", (10.0, 11.0), BodyTooLarge(limit_name="server.body_bytes_max"), None)
        observer.refused("r", (10.0, 11.0), HouseFull(limit_name="limits.multimodal_waiting_max"), None)
        observer.refused("r", (10.0, 11.0), BodyTooLarge(limit_name="a limit of tomorrow"), None)
        observer.refused("r", (10.0, 11.0), Unauthenticated(), None)
    found = samples(metrics)
    name = "foveate_budget_rejections_total"
    assert {limit: value for limit, value in found.items() if limit.startswith(name)} == {
        f"{name}{{limit=max_images}}": 1,
        f"{name}{{limit=server.body_bytes_max}}": 1,
        f"{name}{{limit=other}}": 1,
        f"{name}{{limit=limits.multimodal_waiting_max}}": 1,
    }
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["outcome"], line["error"], line["limit_name"]) for line in lines] == [
        ("refused", "too_many_images", "max_images"),
        ("refused", "body_too_large", "server.body_bytes_max"),
        ("overloaded", "media_capacity_full", "limits.multimodal_waiting_max"),
        ("refused", "body_too_large", "a limit of tomorrow"),
        ("refused", "invalid_api_key", None),
    ]


def test_an_estimate_is_counted_and_is_no_one_s_latency() -> None:
    metrics = Metrics()
    observer = Observer(metrics, None)
    ending = opened(observer, images=1).end("estimated", error_code="too_many_images", limit_name="max_images", at=12.0)
    observer.ended(ending)
    found = samples(metrics)
    assert not any(value for name, value in found.items() if name.startswith(("foveate_errors", "foveate_budget_rej")))
    assert found["foveate_requests_total{modality=multimodal,outcome=estimated}"] == 1
    assert found["foveate_requests_in_flight{modality=multimodal}"] == 0
    assert found["foveate_images_total"] == 0
    assert not [name for name in found if name.startswith(("foveate_request_seconds", "foveate_item_stage"))]


def test_what_the_engine_says_of_its_own_cache_is_counted_when_it_has_answered() -> None:
    observer = Observer(Metrics(), None)
    endings: tuple[tuple[Outcome, int], ...] = (("answered", 24), ("answered", 0), ("cancelled", 8), ("estimated", 8))
    for outcome, cached in endings:
        ledger = opened(observer, images=0)
        ledger.counts.text_tokens, ledger.counts.visual_tokens, ledger.counts.cached_tokens = 30, 10, cached
        observer.ended(ledger.end(outcome, error_code=None, at=12.0))
    assert observer.kv_prefix == KvPrefix(requests=2, hits=1, prompt_tokens=80, cached_tokens=24)
