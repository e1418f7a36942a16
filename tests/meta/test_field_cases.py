"""The page of field cases is what the tests' marks say, and no case is left out."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_page_is_generated_from_the_marks() -> None:
    """In a process of its own, which collects the black-box tests. It fails for a case without a test or a reason."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.blackbox.field_cases.table"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8")
