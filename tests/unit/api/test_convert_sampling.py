"""How tokens are to be drawn: every parameter arrives, and what vLLM could not take is refused before it gets there."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.asking import parsed, refusal_of
from tests.unit.api.fake import chat

from foveate.core.constraint import Constraint
from foveate.core.errors import InvalidParameter
from foveate.core.request import OPTIONAL, Repetition, Truncation

SET: dict[str, tuple[Any, Any]] = {
    "repetition_penalty": (1.1, 1.1),
    "logit_bias": ({"7": -100, "9": 2.5}, {7: -100.0, 9: 2.5}),
    "stop_token_ids": ([1, 2.0], (1, 2)),
    "bad_words": (["a", "b c"], ("a", "b c")),
    "allowed_token_ids": ([3], (3,)),
    "include_stop_str_in_output": (True, True),
    "skip_special_tokens": (False, False),
    "spaces_between_special_tokens": (False, False),
    "prompt_logprobs": (0, 0),
    "logprob_token_ids": ([5], (5,)),
    "thinking_token_budget": (9, 9),
    "repetition_detection": (
        {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3},
        Repetition(4, 1, 3),
    ),
    "stream_interval": (4, 4),
    "structured_outputs": ({"regex": "a+"}, Constraint("regex", "a+", "structured_outputs.regex")),
}


@pytest.mark.parametrize("name", SET)
def test_each_arrives_and_is_known_to_be_set(name: str) -> None:
    given, arrived = SET[name]
    sampling = parsed(chat(**{name: given, "logprobs": True})).sampling
    assert getattr(sampling, name) == arrived
    assert sampling.beyond(()) == name
    assert sampling.beyond(OPTIONAL) is None


def test_nothing_that_is_not_set_is_asked_of_an_engine() -> None:
    assert set(SET) == set(OPTIONAL)
    assert parsed(chat()).sampling.beyond(()) is None
    unset = {"thinking_token_budget": -1, "bad_words": [], "logit_bias": {}, "repetition_penalty": 1}
    assert parsed(chat(**unset)).sampling.beyond(()) is None


def test_truncation() -> None:
    assert parsed(chat(truncate_prompt_tokens=5)).truncation == Truncation(5, "end")
    assert parsed(chat(truncate_prompt_tokens=-1, truncation_side="right")).truncation == Truncation(-1, "beginning")
    assert parsed(chat(truncation_side="left")).truncation is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1_0": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"٣": 1}),
        ("logit_bias", {"99999999999999999999": 1}),
        ("logit_bias", {str(number): 1 for number in range(1025)}),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", list(range(65))),
        ("bad_words", ["x"] * 65),
        ("bad_words", ["é" * 225]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", list(range(1025))),
        ("logprob_token_ids", [1]),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 21),
        ("truncate_prompt_tokens", 0),
        ("truncation_side", "middle"),
        ("repetition_penalty", 0),
        ("stream_interval", 0),
        ("repetition_detection", {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}),
        ("repetition_detection", {"max_pattern_size": 2, "min_count": 1}),
    ],
)
def test_out_of_bounds(name: str, value: Any) -> None:
    error = refusal_of(chat(**{name: value}))
    assert type(error) is InvalidParameter
    assert (error.param or "").startswith(name)


def test_what_a_prompt_is_made_of_is_not_told_in_a_stream() -> None:
    assert refusal_of(chat(prompt_logprobs=1, stream=True)).param == "prompt_logprobs"
