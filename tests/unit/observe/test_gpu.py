"""GPUs: NVIDIA's own library where there is no driver, and one that answers as it does."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pynvml
import pytest

from foveate.observe.gpu import GPUS_MAX, Gpu, Gpus


def test_without_a_driver_there_are_no_gpus() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        assert Gpus().read() == {}
    else:
        found = Gpus().read()
        assert len(found) == min(pynvml.nvmlDeviceGetCount(), GPUS_MAX)
        assert all(
            0 <= one.utilisation <= 1 and 0 < one.memory_used_bytes <= one.memory_bytes for one in found.values()
        )


def test_without_the_library_there_are_no_gpus() -> None:
    gpus = Gpus("pynvml_that_is_not_installed")
    assert not gpus.present
    assert gpus.read() == {}


def test_what_the_library_says_is_told_and_its_failure_costs_the_figures_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ModuleType("pynvml_answering")
    answers.NVMLError = pynvml.NVMLError  # type: ignore[attr-defined]
    answers.nvmlInit = lambda: None  # type: ignore[attr-defined]
    answers.nvmlDeviceGetCount = lambda: 2  # type: ignore[attr-defined]
    answers.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    answers.nvmlDeviceGetUtilizationRates = lambda index: SimpleNamespace(gpu=50 * index)  # type: ignore[attr-defined]
    answers.nvmlDeviceGetMemoryInfo = lambda index: SimpleNamespace(used=index + 1, total=8)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, answers.__name__, answers)
    gpus = Gpus(answers.__name__)
    assert gpus.present
    assert gpus.read() == {"0": Gpu(0.0, 1, 8), "1": Gpu(0.5, 2, 8)}

    def lost(index: int) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    answers.nvmlDeviceGetUtilizationRates = lost  # type: ignore[attr-defined]
    assert gpus.read() == {}
