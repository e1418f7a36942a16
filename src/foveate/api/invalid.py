"""Turns pydantic's account of what is wrong into our refusal: one sentence, the parameter's path, never the value that
was sent.
"""

from __future__ import annotations

import re
from typing import Final

from pydantic import ValidationError

from foveate.api.schema_base import TAG_MARK
from foveate.core.errors import FoveateError, InvalidParameter, InvalidPart

_SUBJECT: Final = re.compile(r"^(Input|String|List|Value) ")
_CONTENT: Final = re.compile(r"^messages\[\d+\]\.content(?:\[(?P<part>\d+)\])?")


def refusal(error: ValidationError) -> FoveateError:
    """Return the refusal for the first thing that is wrong: InvalidPart within a message's content, else
    InvalidParameter.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return InvalidParameter(
            f"The body is not valid JSON: {first.get('ctx', {}).get('error', 'it cannot be parsed')}."
        )
    param = path(first["loc"])
    if not param:
        return InvalidParameter("The body should be a JSON object.")
    return refused_at(param, f"{param} {_fault(first['type'], first['msg'])}.")


def refused_at(param: str, sentence: str) -> FoveateError:
    """Return the refusal of the field at ``param``."""
    content = _CONTENT.match(param)
    if content is None:
        return InvalidParameter(sentence, param=param)
    part = content.group("part")
    return InvalidPart(sentence, param=param, part=int(part) if part is not None else None)


def path(location: tuple[int | str, ...]) -> str:
    """Return a pydantic location as clients write it: ``messages[0].content[1].image_url.url``."""
    text = ""
    for item in location:
        if isinstance(item, int):
            text += f"[{item}]"
        elif not item.startswith(TAG_MARK):
            text += f".{item}" if text else item
    return text


def _fault(kind: str, message: str) -> str:
    if kind == "missing":
        return "is required"
    if kind == "too_short":
        return "should not be empty"
    return _SUBJECT.sub("", message).rstrip(".").replace(" after validation", "")
