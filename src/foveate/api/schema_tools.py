"""Tools as OpenAI's clients describe, choose and answer them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from foveate.api.schema_base import Open

TOOLS_MAX: Final = 128
CALLS_MAX: Final = 128
NAME: Final = r"^[a-zA-Z0-9_.:/-]{1,128}$"
"""OpenAI allows letters, digits, _ and - in 64 characters; MCP's servers use a little more."""
ID_CHARACTERS_MAX: Final = 256

Name = Annotated[str, Field(pattern=NAME)]


class Function(Open):
    """A function that the model may ask to have called. `parameters` is a JSON Schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Open):
    """A tool: a function, there is no other type."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Open):
    """The function to be called."""

    name: Name


class ChosenTool(Open):
    """The tool to be called."""

    type: Literal["function"]
    function: ChosenFunction


class CalledFunction(Open):
    """What was called. `arguments` is the text of a JSON object."""

    name: Name
    arguments: str


class Call(Open):
    """A call that the assistant asked for earlier in the conversation."""

    id: str = Field(max_length=ID_CHARACTERS_MAX)
    type: Literal["function"] = "function"
    function: CalledFunction


def _word_or_object(value: Any) -> str | None:
    if isinstance(value, str):
        return "$string"
    return "$object" if isinstance(value, dict | ChosenTool) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("$string")] | Annotated[ChosenTool, Tag("$object")],
    Discriminator(
        _word_or_object,
        custom_error_type="shape",
        custom_error_message="should be none, auto, required, or an object that names a function",
    ),
]
Tools = Annotated[list[Tool], Field(max_length=TOOLS_MAX)]
Calls = Annotated[list[Call], Field(max_length=CALLS_MAX)]
