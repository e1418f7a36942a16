from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from foveate.core.clock import now
from foveate.core.stages import STAGES, Span, Stage
from foveate.observe.ledger import RequestLedger
from foveate.observe.records import Arrival, LedgerRecord
from foveate.observe.request_line import ITEMS_MAX, encoded, line
from foveate.observe.request_log import RequestLog

FIELDS = (
    *(f"{stage}_ms" for stage in STAGES),
    *("tpot_ms", "ttft_ms", "unattributed_ms", "images", "pixels", "media_bytes", "visual_tokens", "text_tokens"),
    *("output_tokens", "modality", "model", "outcome", "error", "id", "time", "items"),
)
ITEM_STAGES: tuple[Stage, ...] = STAGES[1:7]


def record(images: int = 1, request_id: str = "chatcmpl-0123456789abcdef01234567", model: str = "demo") -> LedgerRecord:
    start = now() - 2
    ledger = RequestLedger(request_id=request_id, model=model, received_at=start, images=images)
    ledger.span(Span("admission", start, start + 0.0123456))
    for index in range(images):
        at = start + 0.0123456
        for stage in ITEM_STAGES:
            ledger.item(index).span(Span(stage, at, at + 0.123456789))
            at += 0.123456789
        ledger.item(index).origin("images.example.org")
        ledger.item(index).ready(at)
    ledger.spans([Span("llm_queue", start + 1.0, start + 1.1), Span("llm_prefill", start + 1.1, start + 1.5)])
    ledger.first_token(start + 1.5)
    ledger.output(1, start + 1.5)
    ledger.output(1, start + 1.6)
    ledger.counts.pixels, ledger.counts.media_bytes = 123_456_789, 12_345_678
    return ledger.end("answered", error_code=None, at=start + 2.0)


def test_a_line_has_every_field_and_its_sum_closes(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with RequestLog(path) as log:
        log.write(record())
        log.write(record(images=0))
    multimodal, text = (json.loads(each) for each in path.read_text().splitlines())
    for entry in (multimodal, text):
        assert set(FIELDS) - {"upstream_ms"} <= set(entry)
        stages = [entry.get(f"{stage}_ms") for stage in STAGES]
        assert round(sum(ms for ms in stages if ms is not None) + entry["unattributed_ms"], 3) == entry["ttft_ms"]
        assert abs(datetime.fromisoformat(entry["time"]).timestamp() - path.stat().st_mtime) < 60
    assert (multimodal["modality"], text["modality"]) == ("multimodal", "text")
    assert multimodal["vision_encode_ms"] == pytest.approx(123.457, abs=0.002)
    assert text["vision_encode_ms"] is None
    assert multimodal["tpot_ms"] == pytest.approx(100)
    assert multimodal["items"][0]["media_fetch_ms"] == pytest.approx(123.457, abs=0.002)
    assert multimodal["items"][0]["host"] == "images.example.org"
    assert text["items"] == []


def test_a_line_tells_when_its_request_ended_not_when_it_was_written(tmp_path: Path) -> None:
    """The event loop may be late with it; the traces of two servers would tell the inner request to begin before the outer one."""
    path = tmp_path / "requests.jsonl"
    late = RequestLedger(request_id="chatcmpl-late", model="demo", received_at=now() - 3601, images=0)
    with RequestLog(path) as log:
        log.write(late.end("answered", error_code=None, at=now() - 3600))
    told = datetime.fromisoformat(json.loads(path.read_text())["time"]).timestamp()
    assert path.stat().st_mtime - told > 3599


def test_an_ordinary_line_is_short_and_a_huge_request_s_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with RequestLog(path) as log:
        for images in (1, 4, 500):
            log.write(record(images))
    one, four, many = path.read_bytes().splitlines()
    assert len(one) < 1400
    assert len(four) < 2048
    assert len(many) < 2048
    assert len(json.loads(many)["items"]) == ITEMS_MAX
    assert json.loads(many)["items_omitted"] == 500 - ITEMS_MAX


def test_the_longest_names_and_largest_figures_stay_within_two_kilobytes() -> None:
    longest = record(500, model="m" * 500)
    for name in ("pixels", "media_bytes", "largest_width", "largest_height", "largest_item_bytes", "visual_tokens"):
        setattr(longest.counts, name, 10**9)
    items = [
        msgspec.structs.replace(item, host="h" * 250, ready_ms=1000.0 + item.index % 3) for item in longest.items[:3]
    ]
    longest = msgspec.structs.replace(
        longest,
        tenant="t" * 100,
        tier="s" * 100,
        error_code="media_capacity_full",
        limit_name="limits.visual_tokens_in_flight_max",
        items=(*items, *(msgspec.structs.replace(item, ready_ms=1.0) for item in longest.items[3:])),
    )
    written = encoded(longest, 0.0)
    assert len(msgspec.json.encode(line(longest, 0.0))) > 2048 > len(written)
    kept = json.loads(written)
    assert [item["index"] for item in kept["items"]] == [2], "that which was ready last explains the wait"
    assert kept["items_omitted"] == 499


def test_starts_make_a_waterfall() -> None:
    found = line(record(2), 0.0)
    happened = [stage for stage in STAGES if isinstance(getattr(found, f"{stage}_ms"), float)]
    assert len(found.starts_ms) == len(happened) == len(STAGES) - 1, "all but upstream"
    assert found.starts_ms == sorted(found.starts_ms)
    assert found.starts_ms[1] == pytest.approx(12.346, abs=0.001), "the fetch began when the place was had"
    assert (found.critical, [item.starts_ms[0] for item in found.items]) == (0, [12.346, 12.346])


def test_how_far_a_fetch_came_is_in_its_item_and_absent_where_there_was_none() -> None:
    ledger = RequestLedger(request_id="r", model="m", received_at=0.0, images=4)
    for index, arrival in enumerate((Arrival(2, 1, 1234), Arrival(0, 0, 0), Arrival(1))):
        ledger.item(index).arrived(arrival)
    ended = ledger.end("failed", error_code="media_fetch_failed", at=1.0)
    assert json.loads(msgspec.json.encode(line(ended, 0.0)))["items"] == [
        {"index": 0, "redirects": 2, "retries": 1, "partial_bytes": 1234},
        {"index": 1, "partial_bytes": 0},
        {"index": 2, "redirects": 1},
    ]


def test_names_from_the_client_are_cut() -> None:
    payload = "data:image/png;base64," + "QUJD" * 1000
    found = line(record(request_id="x" * 5000, model=payload), 0.0)
    assert found.model == "data:[cut]"
    assert len(found.id) <= 128


def test_a_line_is_written_while_the_log_is_open(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with RequestLog(path) as log:
        log.write(record())
        for _ in range(1000):
            if path.read_bytes():
                break
            time.sleep(0.01)
        assert path.read_bytes().count(b"\n") == 1


def test_a_full_queue_drops_and_counts_and_never_waits(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "requests.jsonl", lines_max=3)
    for _ in range(5):
        log.write(record())
    assert log.dropped == 2
    with log:
        pass
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == 3
    assert log.dropped == 2


def test_all_lines_are_written_before_close_returns_and_appended(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    for _ in range(2):
        with RequestLog(path) as log:
            for _ in range(700):
                log.write(record())
    assert len(path.read_text().splitlines()) == 1400


def test_a_full_disk_loses_lines_not_the_writer() -> None:
    with RequestLog(Path("/dev/full")) as log:
        log.write(record())
        log.close()
        assert log.dropped == 1


def test_a_file_that_cannot_be_opened_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RequestLog(tmp_path / "missing" / "requests.jsonl").start()


def test_standard_output_gets_json_lines_and_nothing_else() -> None:
    code = (
        "from foveate.observe.ledger import RequestLedger\n"
        "from foveate.observe.request_log import RequestLog\n"
        "with RequestLog() as log:\n"
        "    log.write(RequestLedger(request_id='r', model='m', received_at=1.0, images=0)"
        ".end('refused', error_code='queue_full', at=2.0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=os.environ.copy(), timeout=60
    )
    (only,) = done.stdout.splitlines()
    entry = json.loads(only)
    assert (entry["outcome"], entry["error"], entry["ttft_ms"]) == ("refused", "queue_full", None)
    assert done.stderr == b""
