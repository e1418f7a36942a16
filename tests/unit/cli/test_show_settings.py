"""``foveate settings`` shows what is in force, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from foveate.cli.main import app
from foveate.core.errors import StartupError


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cache: {encoder_bytes_max: 900MiB}", "limits.arena_bytes_max"),
        ("auth: {keys_file: keys.yaml}", "No such file"),
        ("auth: {keys: ['acme:batch:sha256:" + "0" * 64 + "']}", "no tier 'batch'"),
        ("fetch: {private_networks: [nonsense]}", "'nonsense' is not a network"),
        ("fetch: {hosts: ['a*b.example']}", "a*b.example"),
        ("fetch: {dns_servers: [nonsense]}", "'nonsense' is not a name server"),
        ("fetch: {proxy: 'socks5://proxy:1080'}", "fetch.proxy"),
    ],
)
def test_what_a_start_or_a_reload_refuses_is_refused_here_in_the_same_words(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text(text)
    result = CliRunner().invoke(app, ["settings", "--config", str(file)])
    assert isinstance(result.exception, StartupError)
    assert said in result.exception.public
    assert not result.output
