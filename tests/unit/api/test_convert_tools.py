"""Tools, the choice among them, and calls in a conversation's history."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.asking import parsed, refusal_of
from tests.unit.api.fake import chat

from foveate.core.errors import InvalidParameter
from foveate.core.tool_use import ToolCall, ToolUse

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("body", "use"),
    [
        ({}, None),
        ({"tools": []}, None),
        ({"tool_choice": "auto"}, None),
        ({"tools": [TOOL]}, ToolUse([TOOL], "auto")),
        ({"tools": [TOOL], "tool_choice": "none"}, ToolUse([TOOL], "none")),
        ({"tools": [TOOL], "tool_choice": "required"}, ToolUse([TOOL], "required")),
        ({"tools": [TOOL], "tool_choice": NAMED}, ToolUse([TOOL], "named", "f")),
        ({"tools": [TOOL], "parallel_tool_calls": False}, ToolUse([TOOL], "auto", parallel=False)),
    ],
)
def test_what_may_be_called(body: dict[str, Any], use: ToolUse | None) -> None:
    assert parsed(chat(**body)).tool_use == use


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "custom", "function": {"name": "a"}}]}, "tools[0].type"),
        ({"tools": [{**TOOL, "more": 1}]}, "tools[0].more"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "file:///x"}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [NAMED | {"function": {"name": f"f{number}"}} for number in range(129)]}, "tools"),
    ],
)
def test_what_cannot_be_called(body: dict[str, Any], param: str) -> None:
    error = refusal_of(chat(**body))
    assert type(error) is InvalidParameter
    assert error.param == param


def conversation(role: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}, {"role": role, **fields}]}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_history() -> None:
    turn = parsed(conversation("assistant", content=None, tool_calls=[call('{"a": 1}'), call("")])).turns[1]
    assert turn.tool_calls == (ToolCall("c", "f", {"a": 1}), ToolCall("c", "f", {}))
    assert parsed(conversation("tool", content="12", tool_call_id="c")).turns[1].tool_call_id == "c"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (conversation("user", content="x", tool_calls=[call("{}")]), "messages[1].tool_calls"),
        (conversation("assistant", tool_calls=[call("[]")]), "messages[1].tool_calls[0].function.arguments"),
        (conversation("assistant", tool_calls=[call("{")]), "messages[1].tool_calls[0].function.arguments"),
        (conversation("tool", tool_call_id="c"), "messages[1].content"),
    ],
)
def test_history_that_cannot_be(body: dict[str, Any], param: str) -> None:
    assert refusal_of(body).param == param
