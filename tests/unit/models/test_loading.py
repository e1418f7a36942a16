"""Files become the four faces of a model, or one sentence that says what is wrong with them."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.families import build_family, edit_json
from tests.unit.models.refusals import refusal

from foveate import models
from foveate.core.media import ImageOptions
from foveate.models.families import TRANSFORMERS
from foveate.models.files import DEMO_DIRECTORY
from foveate.models.loading import load_language, load_vision, load_vision_and_language
from foveate.models.port import Embeddings

DirectoryOf = Callable[[str], Path]


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, foveate.models as m; m.supported_families(); m.resolve_model(None); "
        "assert not {'torch', 'transformers'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_damaged_processor_is_refused(tmp_path: Path) -> None:
    directory = build_family("llava", tmp_path / "model")
    (directory / "tokenizer.json").write_text("{}")
    assert "processor" in refusal(lambda: models.load_picture_processor(str(directory)))


def test_a_configuration_beside_another_familys_processor_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(DEMO_DIRECTORY, directory)
    edit_json(directory / "config.json", model_type="llava", architectures=["LlavaForConditionalGeneration"])
    files = models.resolve_model(str(directory))
    assert "processor" in refusal(lambda: models.load_prompt_side(files))
    assert "processor" in refusal(lambda: models.load_picture_processor(str(directory)))


def test_a_processor_that_does_not_resize_is_refused(tmp_path: Path) -> None:
    directory = build_family("llava", tmp_path / "model")
    path = directory / "processor_config.json"
    edit_json(path, image_processor={**json.loads(path.read_text())["image_processor"], "do_resize": False})
    assert "resizes" in refusal(lambda: models.load_picture_processor(str(directory)))


def test_a_transformers_without_what_is_needed_is_refused_with_the_range(
    directory_of: DirectoryOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, load = str(directory_of("llava")), models.load_vision_and_language
    for forward in (lambda self, past_key_values: None, lambda self, mm_encoder_outputs: None):
        with monkeypatch.context() as patch:
            patch.setattr(transformers.LlavaForConditionalGeneration, "forward", forward)
            assert TRANSFORMERS in refusal(lambda: load(directory, device="cpu", dtype="float32"))
    monkeypatch.delattr(transformers.ProcessorMixin, "_process_images")
    assert TRANSFORMERS in refusal(lambda: models.load_picture_processor(directory))


def test_the_range_of_transformers_is_the_one_that_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert TRANSFORMERS in project["dependencies"]


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    directory = build_family("llava", tmp_path / "model")
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    load = models.load_vision_and_language
    assert "weights" in refusal(lambda: load(str(directory), device="cpu", dtype="float32"))


def test_missing_weights_are_refused_and_not_made_up(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(DEMO_DIRECTORY, directory)
    weights = load_file(directory / "model.safetensors")
    gone = next(name for name in weights if name.startswith("visual.blocks.0."))
    del weights[gone]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    load = models.load_vision_and_language
    sentence = refusal(lambda: load(str(directory), device="cpu", dtype="float32"))
    assert "incomplete" in sentence
    assert gone in sentence


def test_too_little_device_memory_is_told_before_loading(
    directory_of: DirectoryOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    load = models.load_vision_and_language
    assert "are free" in refusal(lambda: load(str(directory_of("llava")), device="cuda:0", dtype="auto"))


def test_unknown_devices_and_dtypes_are_refused(directory_of: DirectoryOf) -> None:
    directory, load = str(directory_of("llava")), models.load_vision_and_language
    assert "float32 or bfloat16" in refusal(lambda: load(directory, device="cpu", dtype="int8"))
    assert "toaster" in refusal(lambda: load(directory, device="toaster", dtype="auto"))
    if not torch.cuda.is_available():
        assert "CUDA" in refusal(lambda: load(directory, device="cuda:0", dtype="auto"))


@pytest.mark.parametrize(("dtype", "bytes_each"), [("auto", 4), ("float32", 4), ("bfloat16", 2)])
def test_dtypes_and_progress(dtype: str, bytes_each: int, directory_of: DirectoryOf) -> None:
    lines: list[str] = []
    tower, language = models.load_vision_and_language(
        str(directory_of("qwen3_vl")), device="cpu", dtype=dtype, progress=lines.append
    )
    assert tower.embedding_bytes_per_row == 64 * 4 * bytes_each
    assert len(tower.encoder_version) == 64
    assert language.vocabulary_size == 512
    assert language.context_tokens_max == 8192
    assert any("weights" in line for line in lines)


@pytest.mark.parametrize("family", ["internvl", "qwen3_vl"])
def test_the_vision_tower_alone_is_the_same_tower(family: str, tmp_path: Path) -> None:
    directory = str(build_family(family, tmp_path / family))
    whole, _ = models.load_vision_and_language(directory, device="cpu", dtype="float32")
    alone, _ = load_vision(directory, device="cpu", dtype="float32")
    picture = models.load_picture_processor(directory).process(np.full((90, 130, 3), 7, np.uint8), ImageOptions())
    inputs = {name: torch.from_numpy(array) for name, array in picture.arrays.items()}
    (expected,), (found,) = whole.encode([inputs]), alone.encode([inputs])
    assert isinstance(expected, Embeddings)
    assert isinstance(found, Embeddings)
    assert torch.equal(found.rows, expected.rows)
    assert all(torch.equal(*levels) for levels in zip(found.deep, expected.deep, strict=True))
    assert alone.encoder_version == whole.encoder_version
    assert alone.embedding_bytes_per_row == whole.embedding_bytes_per_row


def test_what_is_left_out_on_purpose_is_no_table_of_warnings(directory_of: DirectoryOf) -> None:
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    logging.getLogger("transformers").addHandler(handler)
    try:
        load_vision(str(directory_of("llava")), device="cpu", dtype="float32")
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert [record.getMessage() for record in said] == []


def test_a_vision_weight_of_another_shape_is_refused(tmp_path: Path) -> None:
    directory = build_family("llava", tmp_path / "llava")
    weights = load_file(directory / "model.safetensors")
    name = next(name for name in weights if "multi_modal_projector.linear_1.weight" in name)
    save_file({**weights, name: weights[name][:-1].clone()}, directory / "model.safetensors", metadata={"format": "pt"})
    assert "linear_1" in refusal(lambda: load_vision(str(directory), device="cpu", dtype="float32"))


def test_the_language_model_alone_answers_as_the_whole_and_holds_no_tower(directory_of: DirectoryOf) -> None:
    directory = str(directory_of("qwen2_5_vl"))
    tower, whole = load_vision_and_language(directory, device="cpu", dtype="float32")
    facts, alone = load_language(directory, device="cpu", dtype="float32")
    assert facts.encoder_version == tower.encoder_version
    assert facts.embedding_bytes_per_row == tower.embedding_bytes_per_row
    token_ids = [100, 101, 102, 103]
    logits = [
        model.prefill(token_ids, [], model.positions(token_ids, []), model.new_cache(), 0, len(token_ids))
        for model in (whole, alone)
    ]
    assert torch.equal(*logits)
    left = [name for name, _ in alone._model.named_parameters()]  # type: ignore[attr-defined]
    assert left
    assert not [name for name in left if "visual" in name or "vision" in name]
