"""The gateway's side of the vLLM engine."""

from __future__ import annotations

from typing import Any

from foveate.core.request import OPTIONAL
from foveate.core.tool_use import AUTO_FEATURE
from foveate.engines.process_client import ProcessEngine
from foveate.engines.vllm.config import PIXEL_FAMILIES, VllmConfig
from foveate.runtime.port import Runtime

ENTRY = "foveate.engines.vllm.process:main"


class VllmEngine(ProcessEngine):
    """vLLM under Foveate's stages."""

    def __init__(self, runtime: Runtime, config: VllmConfig, **given: Any) -> None:
        """``given`` are :class:`ProcessEngine`'s keyword arguments."""
        super().__init__(runtime, ENTRY, config, **given)
        auto = (AUTO_FEATURE,) if config.tool_call_parser else ()
        self.features = frozenset((*OPTIONAL, "tools", *auto))
        if config.family in PIXEL_FAMILIES:
            self.accepts = frozenset({"pixels"})
