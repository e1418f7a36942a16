"""Settings: one declaration, four sources, errors that say what to do."""

from pathlib import Path

import pytest

from foveate.core.errors import StartupError
from foveate.settings import load

MiB = 2**20


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("FOVEATE_"):
            monkeypatch.delenv(name)


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("server: {host: 10.0.0.1, port: 1111, drain_seconds: 7}\n")
    monkeypatch.setenv("FOVEATE_SERVER__PORT", "2222")
    monkeypatch.setenv("FOVEATE_SERVER__HOST", "10.0.0.2")
    settings = load({"server.host": "10.0.0.3"}, config=str(file))
    assert (settings.server.host, settings.server.port, settings.server.drain_seconds) == ("10.0.0.3", 2222, 7)
    assert settings.server.keep_alive_seconds == 75


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("limits:\n  arena_bytes_max: 128MiB\n")
    monkeypatch.setenv("FOVEATE_CONFIG", str(file))
    assert load().limits.arena_bytes_max == 128 * MiB


def test_lists_are_given_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_FETCH__PRIVATE_NETWORKS", "127.0.0.0/8, 10.0.0.0/8")
    settings = load({"fetch.ports": "80,8080"})
    assert settings.fetch.private_networks == ("127.0.0.0/8", "10.0.0.0/8")
    assert settings.fetch.ports == (80, 8080)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server: {prot: 1}", "Did you mean server.port?"),
        ("sever: {port: 1}", "Did you mean server?"),
        ("server: {port: 70000}", "less than or equal to 65535"),
        ("media: {item_bytes_max: lots}", "for example 1048576, 16MiB or 2GiB"),
        ("server: [", "cannot be read"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text(text)
    with pytest.raises(StartupError) as caught:
        load(config=str(file))
    assert said in caught.value.public
    assert "\n" not in caught.value.public


def test_an_unknown_environment_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_SERVER__PROT", "1")
    with pytest.raises(StartupError, match="Did you mean FOVEATE_SERVER__PORT"):
        load()


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(StartupError, match="does not exist"):
        load(config="no/such/file.yaml")
