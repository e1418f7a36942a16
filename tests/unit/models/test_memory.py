"""Weights are priced before they are loaded."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foveate.core.errors import StartupError
from foveate.models import memory


@pytest.fixture
def directory(tmp_path: Path) -> str:
    save_file({"a": torch.zeros(10, 7, dtype=torch.bfloat16), "b": torch.zeros(3)}, tmp_path / "one.safetensors")
    save_file({"c": torch.zeros(5, dtype=torch.bfloat16)}, tmp_path / "two.safetensors", metadata={"format": "pt"})
    return str(tmp_path)


def test_weights_are_counted_as_stored_or_as_asked(directory: str) -> None:
    assert memory.weight_bytes(directory, "auto") == 70 * 2 + 3 * 4 + 5 * 2
    assert memory.weight_bytes(directory, "float32") == 78 * 4
    assert memory.weight_bytes(directory, "bfloat16") == 78 * 2


def test_too_little_memory_is_said_before_loading(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    with pytest.raises(StartupError, match="Not enough memory for tiny"):
        memory.check_memory(directory, "tiny", dtype="float32")


def test_auto_is_counted_as_the_float32_that_a_cpu_loads(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 78 * 4 - 1)
    memory.check_memory(directory, "tiny", dtype="bfloat16")
    with pytest.raises(StartupError, match="as float32"):
        memory.check_memory(directory, "tiny", dtype="auto")
    monkeypatch.setattr(memory, "available_bytes", lambda: 78 * 4)
    memory.check_memory(directory, "tiny", dtype="auto")


def test_encode_workers_hold_the_vision_tower_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {
        "visual.merger.weight": torch.zeros(10),
        "model.language_model.embed_tokens.weight": torch.zeros(100),
        "model.language_model.layers.0.weight": torch.zeros(100),
        "lm_head.weight": torch.zeros(100),
    }
    save_file(weights, tmp_path / "model.safetensors")
    whole, tower = 310 * 4, 10 * 4
    assert memory.vision_bytes(str(tmp_path), "float32") == tower
    for copies, towers, told in (
        (1, 2, "in 1 engine and 2 encode workers"),
        (2, 1, "in 2 engines and 1 encode worker"),
        (0, 3, "in 3 encode workers"),
    ):
        needed = copies * whole + towers * tower
        monkeypatch.setattr(memory, "available_bytes", lambda needed=needed: needed)
        memory.check_memory(str(tmp_path), "tiny", dtype="float32", copies=copies, towers=towers)
        monkeypatch.setattr(memory, "available_bytes", lambda needed=needed: needed - 1)
        with pytest.raises(StartupError, match=f"{told}.* fewer of them"):
            memory.check_memory(str(tmp_path), "tiny", dtype="float32", copies=copies, towers=towers)


def test_this_machine_has_some_memory(directory: str) -> None:
    assert 2**20 < memory.available_bytes() < 2**50
    memory.check_memory(directory, "tiny", dtype="auto")


@pytest.mark.parametrize("content", [b"", b"\x00damaged", b"\x04" + b"\x00" * 7 + b"{{{{"])
def test_damaged_weights_are_said_to_be(directory: str, content: bytes) -> None:
    (Path(directory) / "two.safetensors").write_bytes(content)
    with pytest.raises(StartupError, match=r"two\.safetensors is damaged"):
        memory.weight_bytes(directory, "auto")
