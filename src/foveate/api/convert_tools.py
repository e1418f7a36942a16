"""Tools: from a validated body to :mod:`foveate.core.tool_use`."""

from __future__ import annotations

import msgspec

from foveate.api import parameters
from foveate.api.convert_structured import check_references
from foveate.api.invalid import refused_at
from foveate.api.schema import ChatRequest
from foveate.api.schema_tools import Call, CalledFunction, ChosenFunction, ChosenTool, Function, Tool
from foveate.core.errors import InvalidParameter
from foveate.core.tool_use import ToolCall, ToolUse


def tool_use(body: ChatRequest) -> ToolUse | None:
    """Return the tools of a request; None where it has none. Raises InvalidParameter."""
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none", "auto"):
            raise InvalidParameter("tool_choice needs tools.", param="tool_choice")
        return None
    names = []
    for index, tool in enumerate(body.tools):
        at = f"tools[{index}]."
        parameters.check_extras(tool.model_extra, {}, own=Tool.model_fields, at=at)
        parameters.check_extras(tool.function.model_extra, {}, own=Function.model_fields, at=f"{at}function.")
        check_references(tool.function.parameters, f"{at}function.parameters")
        names.append(tool.function.name)
    if len(set(names)) < len(names):
        raise InvalidParameter("Two tools have the same name.", param="tools")
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools]
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, ChosenTool):
        at = "tool_choice."
        parameters.check_extras(choice.model_extra, {}, own=ChosenTool.model_fields, at=at)
        parameters.check_extras(choice.function.model_extra, {}, own=ChosenFunction.model_fields, at=f"{at}function.")
        if choice.function.name not in names:
            raise InvalidParameter("tool_choice names a function that is not among tools.", param="tool_choice")
        return ToolUse(tools, "named", choice.function.name, parallel)
    return ToolUse(tools, choice or "auto", parallel=parallel)


def calls(given: list[Call] | None, at: str) -> tuple[ToolCall, ...]:
    """Return the calls of an earlier turn. Raises InvalidParameter for arguments that are no JSON object."""
    return tuple(_call(call, f"{at}.tool_calls[{index}]") for index, call in enumerate(given or ()))


def _call(given: Call, at: str) -> ToolCall:
    parameters.check_extras(given.model_extra, {}, own=Call.model_fields, at=f"{at}.")
    parameters.check_extras(given.function.model_extra, {}, own=CalledFunction.model_fields, at=f"{at}.function.")
    text = given.function.arguments
    try:
        arguments = msgspec.json.decode(text or "{}", type=dict)
    except (msgspec.DecodeError, RecursionError):
        where = f"{at}.function.arguments"
        raise refused_at(where, f"{where} should be the text of a JSON object.") from None
    return ToolCall(given.id, given.function.name, arguments)
