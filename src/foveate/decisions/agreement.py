"""Whether what was made of a picture in two ways is the same: embeddings by their cosines, greedy answers by their log-probabilities.

A server that is given wrong embeddings answers all the same, and its clients see nothing but bad answers: so the two must agree before
the first client is answered. What was measured of good and of bad paths, and why these tolerances: docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import msgspec

COSINE_MEAN_MIN: Final = 0.99
"""Mean over the rows, DeepStack levels included. Rounding to bfloat16 costs up to some thousandths."""
COSINE_MIN: Final = 0.9
"""Of every row: a single row at a wrong place is seen."""
NORM_RATIO_OFF_MAX: Final = 0.05
"""How far the mean ratio of lengths may be from 1, which cosines do not see."""
LOGPROB_DIFFERENCE_MAX: Final = 0.25
"""Of one token's log-probability (natural logarithm). A tower in bfloat16 and one in float32 differ by some hundredths."""
COMMON_MIN: Final = 3
"""Of the likeliest tokens of either, so many must be the same, to be compared at all."""


class Step(msgspec.Struct, frozen=True):
    """One token of a greedy answer: the drawn one, and the log-probabilities of the likeliest by token."""

    drawn: Hashable
    top: Mapping[Any, float]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one picture; None: could not be compared. ``what`` names it. ``rows`` of the path and ``rows_expected`` of the
    reference; ``logprob_difference`` is the largest over ``steps`` tokens of the answer. ``reason``: why they do not agree, empty: they do.
    """

    what: str
    reason: str = ""
    rows: int | None = None
    rows_expected: int | None = None
    cosine_mean: float | None = None
    cosine_min: float | None = None
    norm_ratio: float | None = None
    logprob_difference: float | None = None
    steps: int = 0
    seconds: float | None = None


def embeddings_reason(
    *,
    rows: tuple[int, int],
    grids: tuple[Mapping[str, list[int]], Mapping[str, list[int]]],
    finite: bool,
    same_shape: bool,
    cosine_mean: float | None,
    cosine_min: float | None,
    norm_ratio: float | None,
) -> str:
    """Return how embeddings differ from the reference, pairs being (of the path, of the reference); empty where they agree."""
    if rows[0] != rows[1]:
        return f"the picture has {rows[0]} embedding rows, and {rows[1]} by transformers"
    if grids[0] != grids[1]:
        return f"the picture's grid is {_grid(grids[0])}, and {_grid(grids[1])} by transformers"
    if not finite:
        return "the embeddings hold values that are not finite"
    if not same_shape or cosine_mean is None or cosine_min is None or norm_ratio is None:
        return "the embeddings have another width, or other levels, than those of transformers"
    if cosine_mean < COSINE_MEAN_MIN:
        return (
            f"the embeddings' mean cosine to those of transformers is {cosine_mean:.4f}, and must be {COSINE_MEAN_MIN}"
        )
    if cosine_min < COSINE_MIN:
        return f"one embedding row's cosine to that of transformers is {cosine_min:.4f}, and must be {COSINE_MIN}"
    if abs(norm_ratio - 1) > NORM_RATIO_OFF_MAX:
        return f"the embeddings are {norm_ratio:.3f} times as long as those of transformers"
    return ""


def logprob_difference(one: Sequence[Step], other: Sequence[Step]) -> tuple[float, int]:
    """Return the largest difference of a log-probability of two greedy answers, and over how many tokens.

    Up to the first token at which they part, that one included: after it they answer different prompts. Infinite where the likeliest
    tokens are others.
    """
    worst, steps = 0.0, 0
    for mine, theirs in zip(one, other, strict=False):
        common = mine.top.keys() & theirs.top.keys()
        if len(common) < min(COMMON_MIN, len(mine.top)):
            return float("inf"), steps + 1
        worst = max(worst, *(abs(mine.top[token] - theirs.top[token]) for token in common))
        steps += 1
        if mine.drawn != theirs.drawn:
            break
    return worst, steps


def logprobs_reason(difference: float) -> str:
    """Return how answers differ; empty where they agree."""
    if difference <= LOGPROB_DIFFERENCE_MAX:
        return ""
    if difference == float("inf"):
        return "the likeliest tokens of the answer are others than by the reference"
    return f"log-probabilities of the answer differ by {difference:.2f}, and {LOGPROB_DIFFERENCE_MAX} is allowed"


def _grid(meta: Mapping[str, list[int]]) -> str:
    return "; ".join(f"{'x'.join(map(str, sides))}" for sides in meta.values()) or "none"
