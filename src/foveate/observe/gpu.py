"""The machine's GPUs as NVIDIA's own library tells of them, at scrape time. Without a GPU, driver or library there are none."""

from __future__ import annotations

import importlib
import threading
from typing import Any, Final

import msgspec

from foveate.observe.logging import get_logger

GPUS_MAX: Final = 16
"""Those that are told of: the most that one machine of today holds. They are all that the driver shows, in its own order."""
_log = get_logger(__name__)


class Gpu(msgspec.Struct, frozen=True):
    """One GPU: the share of the driver's last sample in which any kernel ran (0..1), and its memory in bytes."""

    utilisation: float
    memory_used_bytes: int
    memory_bytes: int


class Gpus:
    """Asks NVML. Made once; may be read from any thread."""

    def __init__(self, library: str = "pynvml") -> None:
        """``library`` is the module of nvidia-ml-py, which is optional (the extra ``nvidia``)."""
        self._lock = threading.Lock()
        self._told = False
        self._nvml: Any = None
        try:
            nvml = importlib.import_module(library)
            nvml.nvmlInit()
        except ImportError:
            return
        except Exception as error:
            # The library has one class for each of the driver's codes: no driver, no device, no right to ask.
            _log.debug("no GPU is told of", reason=f"{type(error).__name__}: {error}")
            return
        self._nvml = nvml

    @property
    def present(self) -> bool:
        """Whether there is a driver to ask, which may take its time."""
        return self._nvml is not None

    def read(self) -> dict[str, Gpu]:
        """Return the GPUs by their number; none where they cannot be asked."""
        if self._nvml is None:
            return {}
        with self._lock:
            try:
                number = min(self._nvml.nvmlDeviceGetCount(), GPUS_MAX)
                return {str(index): self._one(index) for index in range(number)}
            except self._nvml.NVMLError as error:
                if not self._told:
                    _log.warning("the GPUs cannot be asked", reason=str(error))
                self._told = True
                return {}

    def _one(self, index: int) -> Gpu:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        return Gpu(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, int(memory.used), int(memory.total))
