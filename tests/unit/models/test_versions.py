"""A version changes when, and only when, what it stands for changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.families import edit_json

from foveate import models
from foveate.core.errors import StartupError
from foveate.core.media import Appearance
from foveate.models.families import FAMILIES
from foveate.models.versions import encoder_version

NAMES = list(FAMILIES)
DirectoryOf = Callable[[str], Path]


@pytest.fixture
def copied(directory_of: DirectoryOf, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(directory_of(name), tmp_path / name))


def encoder(directory: Path, dtype: str = "float32") -> str:
    from transformers import AutoConfig

    return encoder_version(directory, AutoConfig.from_pretrained(directory), dtype)


def processor(directory: Path) -> str:
    version = models.load_picture_processor(str(directory)).processor_version
    assert len(version) == 64
    return version


def change(directory: Path, choose: Callable[[str], bool]) -> str:
    """Change one number of the first tensor whose name ``choose`` takes."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in sorted(tensors) if choose(name))
    tensors[name].view(-1)[0] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    return name


def of_language(name: str) -> bool:
    return any(
        part in name
        for part in ("language_model", "text_model", "lm_head", "model.layers", "embed_tokens", "model.norm")
    )


@pytest.mark.parametrize("name", NAMES)
def test_encoder_version_follows_the_vision_weights_alone(name: str, copied: Callable[[str], Path]) -> None:
    directory = copied(name)
    before = encoder(directory)
    assert len(before) == 64
    assert before == encoder(directory)
    changed = change(directory, of_language)
    assert encoder(directory) == before, changed
    changed = change(directory, lambda tensor: not of_language(tensor))
    assert encoder(directory) != before, changed


@pytest.mark.parametrize("name", NAMES)
def test_every_vision_and_projector_tensor_is_covered(name: str, directory_of: DirectoryOf) -> None:
    from foveate.models.versions import _entries

    path = directory_of(name) / "model.safetensors"
    covered = set(_entries(path))
    assert covered == {tensor for tensor in load_file(path) if not of_language(tensor)}
    assert any("proj" in tensor or "merger" in tensor or "connector" in tensor for tensor in covered)


def test_encoder_version_follows_dtype_configuration_and_nothing_else(copied: Callable[[str], Path]) -> None:
    directory = copied("qwen2_5_vl")
    before = encoder(directory)
    assert encoder(directory, "bfloat16") != before
    edit_json(directory / "config.json", transformers_version="0.0", architectures=[])
    assert encoder(directory) == before
    vision = json.loads((directory / "config.json").read_text())["vision_config"]
    edit_json(directory / "config.json", vision_config={**vision, "window_size": 56})
    assert encoder(directory) != before


def test_sharding_does_not_change_the_encoder_version(copied: Callable[[str], Path]) -> None:
    directory = copied("qwen2_5_vl")
    before = encoder(directory)
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    (directory / "model.safetensors").unlink()
    for index, part in enumerate((names[::2], names[1::2]), 1):
        save_file({name: tensors[name] for name in part}, directory / f"model-0000{index}-of-00002.safetensors")
    assert encoder(directory) == before


def test_encoder_version_needs_weights(copied: Callable[[str], Path]) -> None:
    directory = copied("llava")
    (directory / "model.safetensors").unlink()
    with pytest.raises(StartupError, match="safetensors"):
        encoder(directory)


@pytest.mark.parametrize("name", NAMES)
def test_processor_version_follows_its_settings(
    name: str, copied: Callable[[str], Path], directory_of: DirectoryOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    directory = copied(name)
    before = processor(directory)
    assert before == processor(directory_of(name))
    assert models.load_prompt_side(models.resolve_model(str(directory))).processor_version == before
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    change(directory, lambda tensor: True)
    assert processor(directory) == before
    path = directory / "processor_config.json"
    settings = json.loads(path.read_text())
    edit_json(path, image_processor={**settings["image_processor"], "image_mean": [0.1, 0.2, 0.3]})
    after = processor(directory)
    assert after != before
    if name != "llava":
        return
    monkeypatch.setattr(transformers, "__version__", "0.0")
    assert processor(directory) != after


def test_processor_version_follows_how_pictures_are_decoded(
    directory_of: DirectoryOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = models.resolve_model(str(directory_of("llava")))
    looks = (
        Appearance(),
        Appearance(background=(0, 0, 0)),
        Appearance(icc_to_srgb=True),
        Appearance(truncated_accepted=True),
    )
    found = {models.load_prompt_side(files, look).processor_version for look in looks}
    assert len(found) == len(looks)
    assert models.load_picture_processor(files.directory, looks[2]).processor_version in found
    monkeypatch.setattr("foveate.models.versions.version", lambda package: f"{package} of tomorrow")
    assert models.load_prompt_side(files).processor_version not in found
