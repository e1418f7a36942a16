"""The page of field cases is what the tests' marks say, and no case is left out."""

from pathlib import Path

import pytest
from tests.blackbox.field_cases import table

PAGE = Path(__file__).parents[2] / "docs" / "field-cases.md"


@pytest.fixture(scope="module")
def rows() -> list[table.Row]:
    return table.rows()


def test_page_is_generated_from_the_marks(rows: list[table.Row]) -> None:
    assert PAGE.read_text(encoding="utf-8") == table.page(rows)


def test_every_case_has_a_test_or_a_reason(rows: list[table.Row]) -> None:
    assert table.missing(rows) == []


def test_every_test_of_a_field_case_says_which() -> None:
    """A test beside the field cases that carries no mark is in no table."""
    for file in (PAGE.parents[1] / "tests" / "blackbox" / "field_cases").glob("test_group_*.py"):
        lines = file.read_text(encoding="utf-8").splitlines()
        assert sum("field_case(" in line for line in lines) >= 3, file
