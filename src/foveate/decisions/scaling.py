"""How many encode workers there are to be, by how long pictures wait for them. Pure: time comes with each question.

More when pictures wait longer than the target for :data:`MORE_SECONDS` on end: one more, or half as many more where they wait twice as
long. Fewer, one at a time, when for :data:`FEWER_SECONDS` on end they hardly wait and one worker fewer would still have time to spare.
Between the two lies everything else, in which nothing happens: that, and the longer patience for fewer, keep the number from swinging.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

MORE_SECONDS: Final = 2.0
FEWER_SECONDS: Final = 30.0
HARDLY: Final = 0.25
"""Of the target: a wait below this is none."""
SPARE: Final = 0.7
"""Share of their time that the workers left may be busy when there is one fewer."""


class ScaleTerms(msgspec.Struct, frozen=True):
    """The bounds, and how long a picture may wait for an encode worker."""

    workers_min: int
    workers_max: int
    target_seconds: float


class ScaleView(msgspec.Struct, frozen=True):
    """What there is: workers, how long pictures waited lately, and how many workers were busy on average."""

    workers: int
    queue_seconds: float
    busy: float


class ScaleState(msgspec.Struct, frozen=True):
    """Since when pictures wait too long, and since when there are workers to spare (monotonic seconds); None: that is not so."""

    short_since: float | None = None
    spare_since: float | None = None


def scale(view: ScaleView, state: ScaleState, now: float, terms: ScaleTerms) -> tuple[int, ScaleState]:
    """Return how many workers there are to be, and what to remember. The number changes only by a new state."""
    bounded = min(max(view.workers, terms.workers_min), terms.workers_max)
    if bounded != view.workers:
        return bounded, ScaleState()
    short = view.queue_seconds > terms.target_seconds and view.workers < terms.workers_max
    spare = (
        view.workers > terms.workers_min
        and view.queue_seconds <= HARDLY * terms.target_seconds
        and view.busy <= SPARE * (view.workers - 1)
    )
    held = ScaleState(
        _since(state.short_since, now) if short else None, _since(state.spare_since, now) if spare else None
    )
    if held.short_since is not None and now - held.short_since >= MORE_SECONDS:
        much = view.queue_seconds > 2 * terms.target_seconds
        more = math.ceil(view.workers / 2) if much else 1
        return min(view.workers + more, terms.workers_max), ScaleState()
    if held.spare_since is not None and now - held.spare_since >= FEWER_SECONDS:
        return view.workers - 1, ScaleState()
    return view.workers, held


def _since(before: float | None, now: float) -> float:
    return now if before is None else before
