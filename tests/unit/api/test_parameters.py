"""What is not declared: accepted when it cannot matter, refused by name otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.asking import case_lines, parsed, refusal_of
from tests.unit.api.fake import chat, with_parts

from foveate.api import parameters
from foveate.core.errors import InvalidParameter, InvalidPart, UnsupportedParameter

ACCEPTED: list[tuple[str, Any]] = [
    ("user", "someone"),
    ("metadata", {"a": "b"}),
    ("store", False),
    ("service_tier", "auto"),
    ("service_tier", "default"),
    ("modalities", ["text"]),
    ("response_format", {"type": "text"}),
    ("tools", []),
    ("tool_choice", "none"),
    ("logit_bias", {}),
    ("best_of", 1),
    ("echo", False),
    ("repetition_penalty", 1.0),
    ("parallel_tool_calls", True),
]

REFUSED: list[tuple[str, Any]] = [
    ("functions", [{"name": "f"}]),
    ("audio", {"voice": "x"}),
    ("modalities", ["text", "audio"]),
    ("prediction", {"type": "content", "content": "x"}),
    ("reasoning_effort", "high"),
    ("best_of", 2),
    ("best_of", True),
    ("echo", True),
    ("echo", 0),
    ("suffix", "x"),
    ("use_beam_search", True),
    ("guided_json", {}),
    ("guided_regex", "x"),
    ("store", True),
    ("service_tier", "flex"),
    ("chat_template", "x"),
    ("cache_salt", "x"),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_accepted(name: str, value: Any) -> None:
    assert parsed(chat(**{name: value})) == parsed(chat())


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refused_by_name(name: str, value: Any) -> None:
    error = refusal_of(chat(**{name: value}))
    assert type(error) is UnsupportedParameter
    assert error.param == name
    assert name in error.public


def test_null_is_not_set() -> None:
    for name in parameters.BODY:
        assert parsed(chat(**{name: None})) == parsed(chat())


def test_unknown_names_get_the_nearest_known_one() -> None:
    for name, nearest in (("temprature", "temperature"), ("max_token", "max_tokens"), ("tool", "tools")):
        error = refusal_of(chat(**{name: 1}))
        assert type(error) is InvalidParameter
        assert error.param == name
        assert f"Did you mean {nearest}?" in error.public
    error = refusal_of(chat(qqqqqqqq=None))
    assert "Did you mean" not in error.public
    assert len(refusal_of(chat(**{"q" * 100_000: 1})).public) < 200


@pytest.mark.parametrize(
    ("message", "param", "kind"),
    [
        ({"tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function", InvalidParameter),
        ({"name": "bob"}, "messages[0].name", UnsupportedParameter),
        ({"function_call": {}}, "messages[0].function_call", UnsupportedParameter),
        ({"prefix": True}, "messages[0].prefix", InvalidParameter),
    ],
)
def test_fields_of_messages(message: dict[str, Any], param: str, kind: type[Exception]) -> None:
    error = refusal_of({"messages": [{"role": "assistant", "content": "x", **message}]})
    assert type(error) is kind
    assert error.param == param


def test_a_message_as_the_official_client_dumps_it_is_accepted() -> None:
    unset = dict.fromkeys(("refusal", "audio", "function_call", "tool_calls"))
    dumped = {"role": "assistant", "content": "x", "annotations": [], **unset}
    assert parsed({"messages": [dumped]}) == parsed({"messages": [{"role": "assistant", "content": "x"}]})


def test_recorded_tool_history() -> None:
    request = parsed(b"".join(case_lines("case106_tool_image.json")))
    assert [bool(turn.tool_calls) for turn in request.turns].count(True) == 1
    assert len(request.images) == 1


def test_fields_of_parts() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://h/x"}}
    parsed(with_parts({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}))
    for part, param in (
        ({"type": "text", "text": "x", "cash_control": 1}, "messages[0].content[0].cash_control"),
        ({**picture, "max_pixels": 5}, "messages[0].content[0].max_pixels"),
        (
            {"type": "image_url", "image_url": {"url": "https://h/x", "max_dynamic_patch": 1}},
            "messages[0].content[0].image_url.max_dynamic_patch",
        ),
    ):
        error = refusal_of(with_parts(part))
        assert type(error) is InvalidPart
        assert error.param == param


def test_documentation_lists_every_parameter() -> None:
    listed = "\n".join([*parameters.accepted_without_effect(), *parameters.refused()])
    for name in parameters.BODY:
        assert name in listed
    assert "`service_tier`: only `'auto'`, `'default'`" in listed
