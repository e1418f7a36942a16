"""The gateway's side of the embedded engine."""

from __future__ import annotations

from typing import Any

from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.engines.process_client import ProcessEngine
from foveate.runtime.port import Runtime

ENTRY = "foveate.engines.embedded.process:main"


class EmbeddedEngine(ProcessEngine):
    """transformers models under Foveate's own continuous batching."""

    def __init__(self, runtime: Runtime, config: EmbeddedConfig, **given: Any) -> None:
        """``given`` are :class:`ProcessEngine`'s keyword arguments."""
        super().__init__(runtime, ENTRY, config, **given)
