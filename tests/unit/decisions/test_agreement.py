"""Whether two ways to embeddings are the same."""

from typing import Any

import pytest

from foveate.decisions.agreement import (
    LOGPROB_DIFFERENCE_MAX,
    Step,
    embeddings_reason,
    logprob_difference,
    logprobs_reason,
)

GRID = {"image_grid_thw": [1, 14, 22]}
GOOD: dict[str, Any] = {
    "rows": (77, 77),
    "grids": (GRID, GRID),
    "finite": True,
    "same_shape": True,
    "cosine_mean": 0.9999,
    "cosine_min": 0.999,
    "norm_ratio": 1.001,
}


def test_what_agrees_has_no_reason() -> None:
    assert embeddings_reason(**GOOD) == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rows": (77, 80)}, "77 embedding rows, and 80"),
        ({"grids": ({"image_grid_thw": [1, 22, 14]}, GRID)}, "grid is 1x22x14, and 1x14x22"),
        ({"finite": False}, "not finite"),
        ({"same_shape": False}, "another width, or other levels"),
        ({"cosine_mean": None}, "another width, or other levels"),
        ({"cosine_mean": -0.06}, "mean cosine to those of transformers is -0.0600"),
        ({"cosine_min": 0.1}, "one embedding row's cosine"),
        ({"norm_ratio": 2.0}, "2.000 times as long"),
    ],
)
def test_each_difference_is_told(changed: dict[str, Any], said: str) -> None:
    assert said in embeddings_reason(**{**GOOD, **changed})


def steps(*drawn: int, shift: float = 0.0, tokens: int = 5) -> list[Step]:
    return [Step(token, {token + more: -0.5 * more - shift for more in range(tokens)}) for token in drawn]


def test_answers_are_compared_token_by_token() -> None:
    assert logprob_difference(steps(1, 2, 3), steps(1, 2, 3, shift=0.1)) == (pytest.approx(0.1), 3)


def test_after_the_first_other_token_nothing_is_compared() -> None:
    mine = [Step(1, {1: -0.6, 2: -0.7, 3: -2.0}), Step(9, {9: 0.0, 8: -9.0, 7: -9.0})]
    theirs = [Step(2, {1: -0.7, 2: -0.6, 3: -2.0}), Step(5, {5: 0.0, 4: -9.0, 3: -9.0})]
    assert logprob_difference(mine, theirs) == (pytest.approx(0.1), 1)


def test_other_tokens_are_infinitely_far() -> None:
    assert logprob_difference(steps(1), steps(100))[0] == float("inf")


def test_a_server_that_names_one_token_only_can_be_compared() -> None:
    assert logprob_difference(steps(1, tokens=1), steps(1, tokens=1, shift=0.2)) == (pytest.approx(0.2), 1)


def test_what_is_said_of_answers() -> None:
    assert logprobs_reason(LOGPROB_DIFFERENCE_MAX) == ""
    assert "differ by 0.73" in logprobs_reason(0.73)
    assert "likeliest tokens" in logprobs_reason(float("inf"))
