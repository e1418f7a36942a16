"""What every schema of a request body is made of."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict

TAG_MARK: Final = "$"
"""First character of every union tag, so that :mod:`foveate.api.invalid` can leave tags out of a path."""


def string_or_list(value: Any) -> str | None:
    """Return the union tag of a value that may be either."""
    if isinstance(value, str):
        return "$string"
    return "$list" if isinstance(value, list) else None


def _whole(value: Any) -> Any:
    """To JSON, and to some clients, 2.0 is the integer 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Open(BaseModel):
    """Keeps undeclared fields, so that they can be refused by name (or accepted when they cannot matter)."""

    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra={"additionalProperties": False})
