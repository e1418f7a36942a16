"""Where the time before the first token went: spans folded into stages whose sum closes. Pure.

Items of a request run in parallel, so only one chain of spans explains the wait: the request's own spans and those of
the item that was ready last. The fold walks that chain in time order and gives every moment of the window to at most
one span (the one that began first); what no span covers is unattributed. Hence, for any spans whatever::

    window_ms = sum(stages) + unattributed_ms,   unattributed_ms >= 0,   stage_ms <= the raw duration of its spans

Shared work (single flight) needs nothing special: a waiter is handed the leader's absolute spans, and its own window
clips them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from foveate.core.stages import STAGES, Span, Stage

NOISE_MS: Final = 1e-6
"""Rounding of floats stays far below this; a sum further off is a bug and raises."""

_start = attrgetter("start")


class ItemSpans(msgspec.Struct, frozen=True):
    """One media item's chain: its spans, and when it was ready for prefill (``None``: never, or not yet)."""

    ready_at: float | None
    spans: Sequence[Span]


class Folded(msgspec.Struct, frozen=True):
    """The window's time by stage, in milliseconds, in the order of the journey. A stage that did not happen is absent.

    ``starts``: when each of these stages first had a moment, in milliseconds from the window's beginning.
    ``critical`` is the position of the item on the critical path, ``None`` when there are no items.
    """

    stages: dict[Stage, float]
    starts: dict[Stage, float]
    unattributed_ms: float
    window_ms: float
    critical: int | None


def critical_item(items: Sequence[ItemSpans]) -> int | None:
    """Return the position of the item that was ready last.

    An item that is not ready is later than any that is (it is what the request still waits for, or what made it fail);
    among several such, the one whose last span ended last.
    """
    last: tuple[bool, float] | None = None
    found: int | None = None
    for position, item in enumerate(items):
        if item.ready_at is None:
            rank = (True, max((span.end for span in item.spans), default=0.0))
        else:
            rank = (False, item.ready_at)
        if last is None or rank > last:
            last, found = rank, position
    return found


def fold(received_at: float, until: float, request_spans: Iterable[Span], items: Sequence[ItemSpans]) -> Folded:
    """Fold the spans of the critical path into stages over the window ``received_at``..``until`` (monotonic seconds).

    Spans are clipped to the window and to each other. A span wholly outside the window did not happen for this request;
    one that lies inside it but is covered by an earlier span, or has no length, counts as having happened in 0 ms.
    Raises ValueError when the window is negative, ArithmeticError when the sum does not close.
    """
    if until < received_at:
        raise ValueError(f"the window ends {received_at - until:.9f} s before it begins")
    critical = critical_item(items)
    path = list(request_spans)
    if critical is not None:
        path += items[critical].spans
    path.sort(key=_start)

    seconds: dict[Stage, float] = {}
    begun: dict[Stage, float] = {}
    uncovered = 0.0
    reached = received_at
    for span in path:
        if span.end < received_at or span.start > until:
            continue
        start = span.start if span.start > reached else reached
        end = span.end if span.end < until else until
        length = 0.0
        if end > start:
            length = end - start
            uncovered += start - reached
            reached = end
        if span.stage not in seconds:
            begun[span.stage] = start - received_at
        seconds[span.stage] = seconds.get(span.stage, 0.0) + length
    uncovered += until - reached
    stages, unattributed_ms = _closed(seconds, uncovered, until - received_at)
    starts = {stage: begun[stage] * 1e3 for stage in stages}
    return Folded(stages, starts, unattributed_ms, (until - received_at) * 1e3, critical)


def _closed(seconds: dict[Stage, float], uncovered: float, window: float) -> tuple[dict[Stage, float], float]:
    """Convert to milliseconds and check the books: covered and uncovered time were added up apart from each other."""
    stages = {stage: seconds[stage] * 1e3 for stage in STAGES if stage in seconds}
    unattributed_ms = window * 1e3 - sum(stages.values())
    gap_ms = unattributed_ms - uncovered * 1e3
    if abs(gap_ms) > NOISE_MS or unattributed_ms < -NOISE_MS:
        raise ArithmeticError(f"stages and unattributed time differ from the window by {gap_ms} ms")
    return stages, max(unattributed_ms, 0.0)
