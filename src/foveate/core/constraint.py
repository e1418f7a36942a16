"""What the text of an answer has to be: structured output."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]


class Constraint(msgspec.Struct, frozen=True):
    """The answer is valid JSON for a schema, any JSON object, a match of a regular expression, one of several texts, a sentence of a
    grammar, or text whose tagged parts are valid.

    ``spec`` is the schema, the list of choices or the structural tag as JSON, the expression, or the grammar (EBNF or Lark, as vLLM takes
    it); empty for any object. ``param`` is where the client wrote it.
    """

    kind: Kind
    spec: str
    param: str
