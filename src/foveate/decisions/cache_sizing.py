"""How much cache to buy: a predicted curve at multiples of today's capacity, and what it says in words. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from foveate.decisions.miss_ratio import MissRatioCurve, Predicted, Seen

MULTIPLES: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 16.0)
"""Multiples of today's capacity that are predicted, beside unlimited."""

LOOKUPS_MIN: Final = 1000
SAMPLED_MIN: Final = 200
"""With fewer lookups followed the standard error of a ratio may exceed 3.5 points (the root of a quarter over 200)."""

USELESS_RATIO: Final = 0.02
"""Hit ratio of an unlimited cache below which none will help: a fiftieth of the work is less than its own variation from picture to
picture, and the memory serves better as KV cache or arena."""

WORTH_SHARE: Final = 0.02
"""Share of all the work by which a capacity must save more than another to be worth naming: twice the estimate's mean error."""

Verdict = Literal["too_early", "no_cache_helps", "larger_helps", "smaller_does", "right"]


class Point(msgspec.Struct, frozen=True):
    """A capacity and what it would do; ``multiple`` of today's capacity and ``capacity_bytes`` are ``None`` when unlimited."""

    multiple: float | None
    capacity_bytes: int | None
    predicted: Predicted


class Advice(msgspec.Struct, frozen=True):
    """The curve of one cache, and what follows from it: as a code, and in words."""

    capacity_bytes: int
    seen: Seen
    points: tuple[Point, ...]
    verdict: Verdict
    words: str


def advise(curve: MissRatioCurve[Any]) -> Advice:
    """Read a curve at :data:`MULTIPLES` of its capacity and unlimited."""
    today = curve.capacity_bytes
    multiples = (*MULTIPLES, None)
    capacities = [None if multiple is None else int(today * multiple) for multiple in multiples]
    points = tuple(map(Point, multiples, capacities, curve.predict(capacities)))
    seen = curve.seen()
    verdict, words = _judge(seen, points)
    return Advice(today, seen, points, verdict, words)


def _judge(seen: Seen, points: tuple[Point, ...]) -> tuple[Verdict, str]:
    if seen.lookups < LOOKUPS_MIN or seen.sampled < SAMPLED_MIN:
        return "too_early", (
            f"Too early to say: {seen.lookups:,} lookups so far, {seen.sampled:,} of them sampled; "
            f"{LOOKUPS_MIN:,} and {SAMPLED_MIN:,} are needed."
        )
    unlimited = points[-1].predicted.hit_ratio
    if unlimited < USELESS_RATIO:
        return "no_cache_helps", (
            f"No cache will help: {seen.seen_once:.1%} of the media were seen once only, and even an unlimited cache would answer "
            f"{unlimited:.1%} of the lookups."
        )
    today = next(point for point in points if point.multiple == 1.0)
    now = f"Today's {_size(today)} answers {today.predicted.hit_ratio:.0%} of the lookups and saves {_share(seen, today):.0%} of the work"
    best = max(_share(seen, point) for point in points)
    enough = next(point for point in points if _share(seen, point) >= best - WORTH_SHARE)
    then = f"{enough.predicted.hit_ratio:.0%} and {_share(seen, enough):.0%}"
    if _share(seen, today) < best - WORTH_SHARE:
        return "larger_helps", f"{now}; {_size(enough)} would make that {then}. More than that gains little."
    if enough is not today:
        return "smaller_does", f"{now}; {_size(enough)} would do nearly as well: {then}."
    return "right", f"{now}. More would gain little, and half of it would lose."


def _share(seen: Seen, point: Point) -> float:
    """Share of the milliseconds that all lookups would cost without a cache."""
    return point.predicted.saved_ms / seen.cost_ms if seen.cost_ms else 0.0


def _size(point: Point) -> str:
    size = point.predicted.bytes if point.capacity_bytes is None else point.capacity_bytes
    unit, name = next(
        (unit, name)
        for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
        if size >= unit or name == "B"
    )
    return f"{'an unlimited cache, ' if point.capacity_bytes is None else ''}{size / unit:.3g} {name}"
