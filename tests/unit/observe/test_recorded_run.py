"""A recorded run of 200 mixed requests: the stages of each sum to its time to first token, and explain nearly all of it.

The log was written by a real server (benchmarks/record_mixed_run.py). No time is asserted, only how the times relate.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from foveate.core.stages import STAGES

LOG = Path(__file__).parents[2] / "data" / "mixed_run.jsonl"
LINES: list[dict[str, Any]] = [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]
MEDIA = ("media_decode", "mm_processor", "vision_encode")


def share(line: dict[str, Any]) -> float:
    return float(line["unattributed_ms"] / line["ttft_ms"])


def test_the_run_is_mixed_and_whole() -> None:
    assert len(LINES) == 200
    assert all(line["outcome"] == "answered" for line in LINES)
    assert [line["modality"] for line in LINES] == ["text", "multimodal"] * 100
    pictured = [line for line in LINES if line["modality"] == "multimodal"]
    new = [line for line in pictured if line["vision_encode_ms"] is not None]
    assert 10 < len(new) < len(pictured) - 10
    assert any(line["images"] == 2 for line in pictured)


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_every_sum_closes(line: dict[str, Any]) -> None:
    stages = sum(line.get(f"{stage}_ms") or 0.0 for stage in STAGES)
    assert line["unattributed_ms"] >= 0
    assert stages + line["unattributed_ms"] == pytest.approx(line["ttft_ms"], abs=1e-6)
    if line["modality"] == "text":
        assert all(line[f"{stage}_ms"] is None for stage in MEDIA)


def test_little_is_unattributed_at_the_median() -> None:
    for modality in ("text", "multimodal"):
        assert statistics.median(share(line) for line in LINES if line["modality"] == modality) <= 0.02
    assert statistics.median(map(share, LINES)) <= 0.02
