"""Calls of tools and reasoning in an answer, whole and in parts."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from foveate.api.replies import (
    CalledFunction,
    ChatReplyMessage,
    Delta,
    FunctionDelta,
    ToolCallDeltaReply,
    ToolCallReply,
)
from foveate.core.tool_use import ToolCallDelta
from foveate.engines.port import TokenEvent


class Call:
    """What has come of one call so far."""

    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._arguments: list[str] = []

    def add(self, delta: ToolCallDelta) -> None:
        """Take its next part."""
        self._id = delta.id or self._id
        self._name = delta.name or self._name
        self._arguments.append(delta.arguments)

    def reply(self) -> ToolCallReply:
        """Return the whole call."""
        return ToolCallReply(self._id, CalledFunction(self._name, "".join(self._arguments)))


def message_of(text: str, reasoning: str, calls: Iterable[Call]) -> ChatReplyMessage:
    """Return the assistant's turn."""
    replies = [call.reply() for call in calls]
    return ChatReplyMessage(
        text or (None if replies or reasoning else ""),
        tool_calls=replies or msgspec.UNSET,
        reasoning=reasoning or msgspec.UNSET,
        reasoning_content=reasoning or msgspec.UNSET,
    )


def delta_of(event: TokenEvent) -> Delta:
    """Return what is new in a choice where that is more than text."""
    reasoning = event.reasoning or None
    calls = [
        ToolCallDeltaReply(
            call.index,
            FunctionDelta(call.name, call.arguments if call.arguments or call.name else None),
            call.id,
            "function" if call.id else None,
        )
        for call in event.calls
    ]
    return Delta(content=event.text or None, tool_calls=calls or None, reasoning=reasoning, reasoning_content=reasoning)
