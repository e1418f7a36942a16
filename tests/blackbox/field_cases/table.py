"""The page docs/field-cases.md: which case is shown by which test, and what answer is right.

    python -m tests.blackbox.field_cases.table > docs/field-cases.md

It is made from the ``case`` marks of all black-box tests; a test keeps the committed page equal to it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.blackbox.field_cases.titles import ELSEWHERE, GROUPS

ROOT = Path(__file__).parents[3]
HEAD = """# Field cases

Trouble that people met with multimodal serving, and what this server does instead. Each row is a black-box test: a real request to a
running server (`tests/blackbox`), after which a good request is still answered rightly; where an address is forbidden, listeners there
count connections and see none.

Made from the tests' marks by `python -m tests.blackbox.field_cases.table > docs/field-cases.md`; a test keeps the two equal. A number
missing here is not a mistake.
"""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: int
    sent: str
    right: str
    test: str


class _Collector:
    """A plugin that keeps the marks of what pytest collects."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            file = item.path.relative_to(ROOT / "tests" / "blackbox").as_posix()
            test = f"{file.removesuffix('.py')}::{getattr(item, 'originalname', item.name)}"
            for mark in item.iter_markers("case"):
                number, sent, *right = mark.args
                row = Row(number, sent, ", ".join(map(str, right)), test)
                if row not in self.rows:
                    self.rows.append(row)


def rows() -> list[Row]:
    """Return all rows, by case; a case's own in the order of its tests."""
    collector = _Collector()
    code = pytest.main(
        [
            *("--collect-only", "-o", "addopts=--import-mode=importlib", "-p", "no:terminal", "-p", "no:cacheprovider"),
            str(ROOT / "tests" / "blackbox"),
        ],
        plugins=[collector],
    )
    if code != 0:
        raise SystemExit(f"the black-box tests cannot be collected (pytest ended with {code})")
    return sorted(collector.rows, key=lambda row: row.case)


def page(found: list[Row]) -> str:
    """Return the whole page. A case without a test or a reason, and a test of an unknown case, end the program."""
    by_case: defaultdict[int, list[Row]] = defaultdict(list)
    for row in found:
        by_case[row.case].append(row)
    lines = [HEAD]
    for group, cases in GROUPS.items():
        lines += [f"## {group}", "", "| case | what is sent | right answer | test |", "|---|---|---|---|"]
        for number, title in cases.items():
            first = f"**{number}** {title}"
            for row in by_case.pop(number, []):
                lines.append(f"| {first} | {_cell(row.sent)} | {_cell(row.right)} | `{row.test}` |")
                first = ""
            if first and number not in ELSEWHERE:
                raise SystemExit(f"case {number} has neither a test nor a reason why it does not apply")
            if number in ELSEWHERE:
                lines.append(f"| {first} | – | {_cell(ELSEWHERE[number])} | – |")
        lines.append("")
    if by_case:
        raise SystemExit(f"marks name cases that no group has: {sorted(by_case)}")
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(page(rows()))
