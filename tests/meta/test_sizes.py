"""The house's limits on size and names hold for the product's code."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "foveate"
MODULES = sorted(SOURCE.rglob("*.py"))
FORBIDDEN = {"utils", "common", "helpers", "manager", "handler"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_and_functions_stay_readable(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert path.stem not in FORBIDDEN
    assert len(text.splitlines()) <= 400
    tree = ast.parse(text)
    assert path.stem == "__main__" or ast.get_docstring(tree), "a module says what it covers"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 60, f"{node.name} is too long"


def test_most_modules_are_within_the_aim() -> None:
    sizes = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES)
    assert sizes[len(sizes) * 9 // 10] <= 300
