"""Reading a request log back, whatever state it is in."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from foveate.observe.log_query import Query, find, latest, moment, slowest
from foveate.observe.log_reader import LogReader
from foveate.observe.waterfall import waterfall

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def entry(number: int, **fields: Any) -> bytes:
    line = {"time": f"2026-11-30T11:{number:02}:00.000Z", "id": f"chatcmpl-{number:04}", "modality": "text"}
    return json.dumps({**line, "outcome": "answered", **fields}).encode() + b"\n"


def ids(reader: LogReader) -> list[str]:
    return [line.id[-2:] for line, _ in reader]


def test_predecessors_come_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(entry(5))
    (tmp_path / "log.1").write_bytes(entry(3) + entry(4))
    (tmp_path / "log.2").write_bytes(entry(2))
    (tmp_path / "log.4").write_bytes(entry(0))  # behind a gap: of another time
    assert ids(LogReader(path)) == ["02", "03", "04", "05"]


@pytest.mark.parametrize(
    "damage",
    [
        b'{"time":"2026',
        b"\x00" * 5000,
        b"\xff\xfe\n",
        b"[]\n",
        b'{"id":5}\n',
        b"x" * 200_000 + b"\n",
        entry(7, ttft_ms="soon"),
    ],
    ids=["cut", "zeros", "no text", "other json", "wrong type", "endless", "wrong field"],
)
def test_damage_is_skipped_and_counted(damage: bytes) -> None:
    reader = LogReader(None, io.BytesIO(entry(1) + b"\n" + damage))
    assert ids(reader) == ["01"]
    assert (reader.read, reader.damaged) == (1, 1)
    if damage.endswith(b"\n"):
        assert ids(LogReader(None, io.BytesIO(entry(1) + damage + entry(2)))) == ["01", "02"]


def test_lines_of_other_versions_are_read() -> None:
    (found,) = LogReader(None, io.BytesIO(entry(1, invented_later={"a": [1]})))
    assert (found[0].images, found[0].starts_ms, found[0].ttft_ms) == (0, [], None)


def test_filters_and_order() -> None:
    lines = list(
        LogReader(
            None,
            io.BytesIO(
                entry(1, ttft_ms=50.0, total_ms=60.0)
                + entry(2, modality="multimodal", ttft_ms=20.0, media_fetch_ms=15.0, llm_prefill_ms=1.0)
                + entry(3, modality="multimodal", ttft_ms=90.0, media_fetch_ms=5.0, llm_prefill_ms=80.0, tenant="acme")
                + entry(4, outcome="overloaded", error="queue_full", total_ms=70.0)
            ),
        )
    )

    def numbers(found: list[tuple[Any, bytes]]) -> list[int]:
        return [int(line.id[-1]) for line, _ in found]

    assert numbers(slowest(lines, Query(), 3)) == [3, 4, 1]
    assert numbers(slowest(lines, Query(modality="multimodal", stage="media_fetch"), 9)) == [2, 3]
    assert numbers(latest(lines, Query(), 2)) == [3, 4]
    assert (
        numbers(latest(lines, Query(status="queue_full"), 9))
        == numbers(latest(lines, Query(status="overloaded"), 9))
        == [4]
    )
    assert numbers(latest(lines, Query(tenant="acme"), 9)) == [3]
    assert numbers(latest(lines, Query(since=moment("2026-11-30T11:03", NOW)), 9)) == [3, 4]
    assert numbers(latest(lines, Query(since=moment("58m", NOW)), 9)) == [2, 3, 4]
    assert find(lines, "chatcmpl-0002").id == "chatcmpl-0002"
    with pytest.raises(LookupError, match="several"):
        find(lines, "chatcmpl-000")
    with pytest.raises(LookupError, match="no request"):
        find(lines, "chatcmpl-0009")


def test_an_id_may_begin_another() -> None:
    lines = list(LogReader(None, io.BytesIO(entry(1, id="abc") + entry(2, id="abcd"))))
    assert find(lines, "abc").id == find(list(reversed(lines)), "abc").id == "abc"


@pytest.mark.parametrize(
    ("text", "ago"), [("90s", timedelta(seconds=90)), ("2h", timedelta(hours=2)), ("7d", timedelta(days=7))]
)
def test_moments(text: str, ago: timedelta) -> None:
    assert moment(text, NOW) == NOW - ago


@pytest.mark.parametrize("text", ["", "5", "-5m", "yesterday", "9999999999h", "12:00"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="neither a time"):
        moment(text, NOW)


def test_a_waterfall_has_the_request_around_its_items() -> None:
    items = [
        {"index": 0, "ready_ms": 9.0, "starts_ms": [1.0, 3.0], "media_fetch_ms": 2.0, "vision_encode_ms": 6.0},
        {"index": 2, "ready_ms": 4.0, "starts_ms": [1.0], "media_fetch_ms": 3.0},
    ]
    own = {
        "admission_ms": 1.0,
        "media_fetch_ms": 2.0,
        "vision_encode_ms": 6.0,
        "llm_queue_ms": 1.0,
        "llm_prefill_ms": 5.0,
    }
    times = {"starts_ms": [0.0, 1.0, 3.0, 9.0, 10.0], "critical": 0, "ttft_ms": 15.0, "tpot_ms": 2.0, "total_ms": 25.0}
    ((line, _),) = LogReader(None, io.BytesIO(entry(1, modality="multimodal", items=items, **own, **times)))
    made = waterfall(line)
    assert [(bar.item, bar.stage, bar.start_ms, bar.critical) for bar in made.bars] == [
        (None, "admission", 0.0, True),
        (0, "media_fetch", 1.0, True),
        (0, "vision_encode", 3.0, True),
        (2, "media_fetch", 1.0, False),
        (None, "llm_queue", 9.0, True),
        (None, "llm_prefill", 10.0, True),
        (None, "tpot", 15.0, False),
    ]
    assert (made.window_ms, made.measured) == (25.0, True)
    assert sum(bar.ms for bar in made.bars if bar.critical) == 15.0
