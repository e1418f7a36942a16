"""Structured output in both spellings, and what of it is refused before anything compiles it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.asking import parsed, refusal_of
from tests.unit.api.fake import chat

from foveate.core.constraint import Constraint
from foveate.core.errors import InvalidParameter, UnsupportedParameter

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object", "", "response_format")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            Constraint("json", TEXT, "response_format.json_schema.schema"),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, Constraint("json", TEXT, "structured_outputs.json")),
        ({"structured_outputs": {"json": TEXT}}, Constraint("json", TEXT, "structured_outputs.json")),
        ({"structured_outputs": {"regex": ""}}, Constraint("regex", "", "structured_outputs.regex")),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            Constraint("choice", '["a","b"]', "structured_outputs.choice"),
        ),
        (
            {"structured_outputs": {"grammar": 'root ::= "a"', "disable_any_whitespace": False}},
            Constraint("grammar", 'root ::= "a"', "structured_outputs.grammar"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            Constraint("json_object", "", "structured_outputs.json_object"),
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            Constraint("structural_tag", '{"type":"structural_tag","format":{"type":"any_text"}}', "response_format"),
        ),
    ],
)
def test_what_is_asked_for(body: dict[str, Any], found: Constraint | None) -> None:
    assert parsed(chat(**body)).sampling.structured_outputs == found


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a" * 8193}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": {"enum": ["x" * 66_000]}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"$ref": "http://h/x"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": '{"items": [{"$ref": "x.json"}]}'}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
    ],
)
def test_what_is_no_constraint(body: dict[str, Any], param: str) -> None:
    error = refusal_of(chat(**body))
    assert type(error) is InvalidParameter
    assert error.param == param


@pytest.mark.parametrize("name", ["disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"])
def test_what_vllm_would_ignore_is_refused(name: str) -> None:
    error = refusal_of(chat(structured_outputs={"json": {}, name: True}))
    assert type(error) is UnsupportedParameter
    assert error.param == f"structured_outputs.{name}"
