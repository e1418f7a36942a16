"""What ties a test to the field case it shows: ``@field_case(number, what is sent, the right answer)``.

The marks are read by ``right`` (the answer a test asserts is the one in its mark) and by ``table`` (docs/field-cases.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.blackbox.replies import assert_no_address, assert_no_path, assert_typed


@dataclass(frozen=True)
class Right:
    """The right answer to a case: its status, and the error's code and exceeded limit where it is a refusal."""

    status: int
    code: str | None = None
    limit_name: str | None = None

    def __str__(self) -> str:
        return " ".join([str(self.status), *(f"`{name}`" for name in (self.code, self.limit_name) if name)])

    def check(self, response: httpx.Response, *, param: str | None = None) -> dict[str, Any]:
        """Assert that this is the answer; return the error (an answer has none). ``param``: what its param begins with."""
        assert_no_address(response)
        assert response.status_code == self.status, f"{response.status_code}, not {self}: {response.text[:1000]}"
        if self.code is None:
            return {}
        assert_no_path(response)
        assert response.headers["content-type"].startswith("application/json")
        error: dict[str, Any] = response.json()["error"]
        assert_typed(error)
        assert error["code"] == self.code, error
        assert error.get("limit_name") == self.limit_name, error
        if self.limit_name is not None:
            assert "limit" in error, error
        if self.status in (429, 503):
            assert int(response.headers["retry-after"]) >= 1
        if param is not None:
            assert (error["param"] or "").startswith(param), error
        return error


ANSWERED = Right(200)


def field_case(number: int, sent: str, *right: Right | str) -> pytest.MarkDecorator:
    """Mark a test as showing a field case.

    ``right`` is the answer that it asserts; a sentence where what must hold is no answer to one request.
    """
    return pytest.mark.case(number, sent, *right)


@pytest.fixture(name="right")
def _right(request: pytest.FixtureRequest) -> Right:
    """The answer that the test's mark calls right."""
    answers = {one for mark in request.node.iter_markers("case") for one in mark.args[2:] if isinstance(one, Right)}
    assert len(answers) == 1, "a test that asks for `right` has one"
    return answers.pop()
