"""Structured output as OpenAI's and vLLM's clients ask for it.

Bounds are of what is read and compiled, far above what people write by hand or classes generate: how much work a constraint is does not
follow from its length, so whoever compiles it bounds that (:mod:`foveate.engines.vllm.grammars`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from foveate.api.schema_base import Open

SPEC_BYTES_MAX: Final = 64 * 1024
REGEX_CHARACTERS_MAX: Final = 8192
CHOICES_MAX: Final = 1024
CHOICE_CHARACTERS_MAX: Final = 4096
GRAMMAR_CHARACTERS_MAX: Final = 64 * 1024
NAME_CHARACTERS_MAX: Final = 256


class JsonSchemaFormat(Open):
    """A JSON schema with a name for it; only the schema counts."""

    name: str | None = Field(None, max_length=NAME_CHARACTERS_MAX)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="JSON Schema of the whole answer.")
    strict: bool | None = Field(None, description="The answer is always held to the schema.")


class ResponseFormat(Open):
    """What the answer's text has to be (OpenAI's). Members of `structural_tag` are vLLM's."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(Open):
    """What the answer's text has to be (vLLM's): exactly one of these."""

    json_: dict[str, Any] | Annotated[str, Field(max_length=SPEC_BYTES_MAX)] | None = Field(
        None, alias="json", description="JSON Schema, or its text."
    )
    regex: str | None = Field(None, max_length=REGEX_CHARACTERS_MAX)
    choice: list[Annotated[str, Field(max_length=CHOICE_CHARACTERS_MAX)]] | None = Field(
        None, min_length=1, max_length=CHOICES_MAX
    )
    grammar: str | None = Field(None, min_length=1, max_length=GRAMMAR_CHARACTERS_MAX, description="EBNF or Lark.")
    json_object: bool | None = None
    structural_tag: str | None = Field(None, min_length=1, max_length=SPEC_BYTES_MAX)
