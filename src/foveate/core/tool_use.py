"""Tools: functions of the client's that a model may ask to have called, and what it asked for."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

AUTO_FEATURE = "tool_choice auto"
"""Feature of an engine that finds calls in free text, which takes knowledge of how its model writes them."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call in a conversation's history. ``arguments`` is a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any]


class ToolUse(msgspec.Struct, frozen=True):
    """The tools of a request, as the client described them (OpenAI's ``tools``), and which of them the answer may or must call.

    ``choice`` ``named`` asks for a call of the function ``name``. Without ``parallel`` there is at most one call.
    """

    tools: list[dict[str, Any]]
    choice: Literal["none", "auto", "required", "named"]
    name: str = ""
    parallel: bool = True


class ToolCallDelta(msgspec.Struct, frozen=True, array_like=True):
    """New output that belongs to a call: the first of a call has its ``id`` and ``name``; ``arguments`` is the next part of its JSON."""

    index: int
    id: str | None
    name: str | None
    arguments: str
