"""Which vLLM is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveate.core.errors import StartupError
from foveate.engines.vllm import versions


@pytest.mark.parametrize("installed", ["0.32.0", "0.32.3+cpu"])
def test_a_tested_version_is_taken(installed: str) -> None:
    versions.check_version(installed, untested_accepted=False)


@pytest.mark.parametrize(("installed", "what"), [("0.9.2", "too old"), ("0.33.0rc1", "newer"), ("1.0", "newer")])
def test_another_is_refused_with_the_way_out(installed: str, what: str) -> None:
    with pytest.raises(StartupError) as raised:
        versions.check_version(installed, untested_accepted=False)
    assert what in raised.value.public
    assert "0.32.x" in raised.value.public
    versions.check_version(installed, untested_accepted=True)


def test_a_missing_interface_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        versions, "INTERFACES", (("json", "loads"), ("json", "JSONDecoder.gone"), ("no_such_module", "x"))
    )
    with pytest.raises(StartupError) as raised:
        versions.check_interfaces("0.32.0")
    assert "json.JSONDecoder.gone, no_such_module.x." in raised.value.public


def test_the_document_lists_what_is_tested() -> None:
    page = (Path(__file__).parents[4] / "docs" / "vllm.md").read_text()
    assert all(f"| {minor}.x" in page for minor in versions.TESTED)
