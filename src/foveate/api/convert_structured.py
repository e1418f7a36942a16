"""Structured output: from a validated body to :class:`foveate.core.constraint.Constraint`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from foveate.api import parameters
from foveate.api.parameters import Accepts
from foveate.api.schema_structured import SPEC_BYTES_MAX, JsonSchemaFormat, ResponseFormat, StructuredOutputs
from foveate.api.structure import check_structure
from foveate.core.constraint import Constraint, Kind
from foveate.core.errors import InvalidParameter

_OF_THE_ENGINE: Final[Mapping[str, Accepts]] = {
    name: lambda value: value is False
    for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
}
"""vLLM 0.32 reads these in requests and goes by its own configuration: to pass them on would be to ignore them."""


def constraint(format_: ResponseFormat | None, outputs: StructuredOutputs | None) -> Constraint | None:
    """Return what the answer has to be; None where it may be anything. Raises InvalidParameter, UnsupportedParameter."""
    first = None if format_ is None else _of_format(format_)
    second = None if outputs is None else _of_outputs(outputs)
    if first is not None and second is not None:
        raise InvalidParameter("response_format and structured_outputs exclude each other.", param="structured_outputs")
    found = first or second
    if found is not None and found.kind in ("json", "structural_tag"):
        check_references(_decoded(found.spec, found.param), found.param)
    if found is not None and len(found.spec.encode()) > SPEC_BYTES_MAX:
        raise InvalidParameter(
            f"{found.param} has more than the {SPEC_BYTES_MAX} bytes that a constraint may have.",
            param=found.param,
            limit=SPEC_BYTES_MAX,
        )
    return found


def check_references(schema: Any, param: str) -> None:
    """Raises InvalidParameter where a schema refers to another document: nothing is fetched, and xgrammar would allow anything there."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            target = value.get("$ref")
            if isinstance(target, str) and not target.startswith("#"):
                raise InvalidParameter(f"{param} refers to another document; only #/… is followed.", param=param)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _decoded(text: str, param: str) -> Any:
    check_structure(text.encode())
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidParameter(f"{param} is not valid JSON.", param=param) from None


def _of_format(given: ResponseFormat) -> Constraint | None:
    at = "response_format"
    parameters.check_extras(given.model_extra, {}, own=ResponseFormat.model_fields, at=f"{at}.")
    match given.type:
        case "text":
            return None
        case "json_object":
            return Constraint("json_object", "", at)
        case "json_schema":
            named = given.json_schema
            if named is None or named.schema_ is None:
                raise InvalidParameter(f"{at} of type json_schema needs json_schema.schema.", param=f"{at}.json_schema")
            parameters.check_extras(named.model_extra, {}, own=_names(JsonSchemaFormat), at=f"{at}.json_schema.")
            return Constraint("json", _text(named.schema_), f"{at}.json_schema.schema")
        case "structural_tag":
            members = {
                "type": given.type,
                "format": given.format,
                "structures": given.structures,
                "triggers": given.triggers,
            }
            return Constraint(
                "structural_tag", _text({name: held for name, held in members.items() if held is not None}), at
            )


def _of_outputs(given: StructuredOutputs) -> Constraint:
    at = "structured_outputs"
    parameters.check_extras(given.model_extra, _OF_THE_ENGINE, own=_names(StructuredOutputs), at=f"{at}.")
    asked: dict[Kind, str | None] = {
        "json": given.json_ if isinstance(given.json_, str | None) else _text(given.json_),
        "regex": given.regex,
        "choice": None if given.choice is None else _text(given.choice),
        "grammar": given.grammar,
        "json_object": "" if given.json_object else None,
        "structural_tag": given.structural_tag,
    }
    found = [Constraint(kind, spec, f"{at}.{kind}") for kind, spec in asked.items() if spec is not None]
    if len(found) != 1:
        raise InvalidParameter(f"{at} needs exactly one of {', '.join(asked)}.", param=at)
    return found[0]


def _names(model: type[JsonSchemaFormat | StructuredOutputs]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
