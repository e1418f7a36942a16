"""Names become files of models on this machine, or one sentence that says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.models.refusals import refusal

from foveate import models

DirectoryOf = Callable[[str], Path]


def test_no_name_is_the_shipped_model() -> None:
    files = models.resolve_model(None)
    assert files.family == "qwen2_5_vl"
    assert (Path(files.directory) / "config.json").is_file()


def test_pixtral_is_told_from_llava(directory_of: DirectoryOf) -> None:
    assert models.resolve_model(str(directory_of("pixtral"))).family == "pixtral"
    assert models.resolve_model(str(directory_of("llava"))).family == "llava"


@pytest.mark.parametrize(
    "name", ["/no/such/model", "./nor/this", "~/nor-this", "~nobody-of-this-name/nor-this", "a/b/c"]
)
def test_a_missing_directory_is_named(name: str) -> None:
    assert name in refusal(lambda: models.resolve_model(name))


def test_a_hub_id_that_is_not_here_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    sentence = refusal(lambda: models.resolve_model("nobody/nothing"))
    assert "nobody/nothing" in sentence
    assert "HF_HUB_OFFLINE" in sentence
    assert "hub id" in refusal(lambda: models.resolve_model("not a name"))


def test_a_hub_id_is_taken_from_the_local_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, directory_of: DirectoryOf
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    stored = tmp_path / "models--some--model"
    shutil.copytree(directory_of("llava"), stored / "snapshots" / ("a" * 40))
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("a" * 40)
    files = models.resolve_model("some/model")
    assert files.name == "some/model"
    assert files.family == "llava"


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    assert "config.json" in refusal(lambda: models.resolve_model(str(tmp_path)))
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in refusal(lambda: models.resolve_model(str(tmp_path)))


def test_an_unsupported_family_is_named_with_those_that_work(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    sentence = refusal(lambda: models.resolve_model(str(tmp_path)))
    assert '"bert"' in sentence
    for family in models.supported_families():
        assert family in sentence


def test_a_name_too_long_for_any_directory_is_refused() -> None:
    assert len(refusal(lambda: models.resolve_model("x" * 4000))) < 400
