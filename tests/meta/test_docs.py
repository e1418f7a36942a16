"""Generated pages are up to date, and what the README promises exists."""

import re
from pathlib import Path

from foveate.api.errors import status
from foveate.core.errors import error_classes
from foveate.core.stages import STAGES
from foveate.observe import table
from foveate.settings import declared, reference

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_settings_page_is_generated_from_the_declarations() -> None:
    assert read("docs/settings.md") == reference()


def test_metrics_page_is_generated_from_the_table() -> None:
    assert read("docs/metrics.md") == table.page()


def test_flags_are_unique_and_every_setting_says_what_it_is() -> None:
    entries = list(declared())
    assert len({entry.flag for entry in entries}) == len(entries)
    assert all(entry.info.description for entry in entries)


def test_the_two_commands_come_early_in_the_readme() -> None:
    head = "\n".join(read("README.md").splitlines()[:25])
    assert "make serve" in head
    assert "make test" in head


def test_paths_named_in_the_documents_exist() -> None:
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        for path in re.findall(r"`((?:src|docs|tests|tools|benchmarks)/[A-Za-z0-9_./-]+)`", read(document)):
            assert (ROOT / path).exists(), f"{document} names {path}"


def test_links_lead_somewhere_and_nothing_is_left_to_fill_in() -> None:
    for document in (
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")),
    ):
        text = read(document)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
            assert ((ROOT / document).parent / target).exists(), f"{document} links {target}"
        assert not re.search(r"^[A-Z]{5,}$", text, re.MULTILINE), f"{document} has a placeholder"


def test_every_stage_is_explained() -> None:
    page = read("docs/stages.md")
    for stage in (*STAGES, "tpot", "ttft", "unattributed"):
        assert f"`{stage}`" in page


def test_every_error_is_documented_with_its_status() -> None:
    page = read("docs/api.md")
    bases = {"startup_failed", "invalid_request", "overloaded"}
    for code, kind in error_classes().items():
        if code not in bases:
            assert f"| {status(kind())} | `{code}` | {'yes' if kind.retryable else 'no'} |" in page
