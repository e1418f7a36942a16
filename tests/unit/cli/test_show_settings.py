"""``foveate settings`` shows what is in force, and no secret."""

from __future__ import annotations

import pytest
import yaml
from typer.testing import CliRunner

from foveate.cli.main import app


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FOVEATE_FETCH__PROXY", "http://foveate:hunter2@proxy.example:3128")
    monkeypatch.setenv("FOVEATE_AUTH__KEYS", "acme:default:plain:0123456789-abcdefghij")
    monkeypatch.setenv("FOVEATE_MULTIMODAL_BUDGET__DEFAULT__MAX_IMAGES", "3")
    result = CliRunner().invoke(app, ["settings"])
    assert result.exit_code == 0, result.output
    return result.output


def test_values_in_force_are_shown_as_a_settings_file(shown: str) -> None:
    values = yaml.safe_load(shown)
    assert values["multimodal_budget"]["default"]["max_images"] == 3
    assert values["fetch"]["proxy"] == "http://***@proxy.example:3128"


def test_no_secret_is_shown(shown: str) -> None:
    assert "hunter2" not in shown
    assert "0123456789-abcdefghij" not in shown
