"""A request's waterfall: which stage of which item ran when. Pure; made from a line of the request log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from foveate.core.stages import STAGES, Stage
from foveate.observe.log_query import stages_of
from foveate.observe.request_line import ItemLine, RequestLine

AFTER_ITEMS: Final = ("llm_queue", "llm_prefill", "upstream")
"""The stages of a request that come after those of its media."""


class Bar(msgspec.Struct, frozen=True):
    """One stage of the request itself (``item`` None) or of one of its items: milliseconds from the request's arrival.

    ``critical``: it lies on the path that the first token waited for. ``stage`` may be ``tpot``, the time after the first token. A
    request's llm_prefill that is not critical ran while a picture was still being encoded.
    """

    item: int | None
    stage: str
    start_ms: float
    ms: float
    critical: bool


class Waterfall(msgspec.Struct, frozen=True):
    """All bars, those of the request first, then item by item. ``measured`` is false where a line of an older version has no starts,
    and stages are laid end to end in the order of the journey.
    """

    bars: tuple[Bar, ...]
    window_ms: float
    measured: bool


def waterfall(line: RequestLine) -> Waterfall:
    """Return the waterfall of a logged request."""
    stages = stages_of(line)
    starts, measured = _starts(stages, line.starts_ms)
    shown = {item.index for item in line.items}
    # A line that was too long for its items still has the stages of the critical one.
    own = [stage for stage in stages if stage not in STAGES[1:7] or line.critical not in shown]
    before = [Bar(None, stage, starts[stage], stages[stage], True) for stage in own if stage not in AFTER_ITEMS]
    after = [Bar(None, stage, starts[stage], stages[stage], True) for stage in own if stage in AFTER_ITEMS]
    start_ms, overlap_ms = line.prefill_overlap_start_ms, line.prefill_overlap_ms
    if isinstance(start_ms, float) and isinstance(overlap_ms, float):
        after.insert(0, Bar(None, "llm_prefill", start_ms, overlap_ms, False))
    bars = [*before, *(bar for item in line.items for bar in _item(item, item.index == line.critical)), *after]
    if line.ttft_ms is not None and line.tpot_ms is not None:
        bars.append(Bar(None, "tpot", line.ttft_ms, max(line.total_ms - line.ttft_ms, 0.0), False))
    return Waterfall(tuple(bars), line.total_ms, measured)


def _item(item: ItemLine, critical: bool) -> list[Bar]:
    stages: dict[Stage, float] = {}
    for stage in STAGES[1:7]:
        ms = getattr(item, f"{stage}_ms")
        if ms is not None:
            stages[stage] = ms
    starts, _ = _starts(stages, item.starts_ms)
    return [Bar(item.index, stage, starts[stage], ms, critical) for stage, ms in stages.items()]


def _starts(stages: Mapping[Stage, float], starts_ms: Sequence[float]) -> tuple[dict[Stage, float], bool]:
    if len(starts_ms) == len(stages):
        return dict(zip(stages, starts_ms, strict=True)), True
    reached = 0.0
    starts: dict[Stage, float] = {}
    for stage, ms in stages.items():
        starts[stage] = reached
        reached += ms
    return starts, False
