"""What vLLM reads from the environment. Set before it is imported or started, and only where the operator has not."""

from __future__ import annotations

import os
from typing import Final

from foveate.engines.vllm.config import VllmConfig
from foveate.runtime.local.bootstrap import tie_forks

PARENT: Final = "FOVEATE_VLLM_PARENT"
"""Environment variable with the engine process's id, for vLLM's processes to end with it where they are spawned, not forked."""


def before_import() -> None:
    """Set what is read once, at import."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # Standard output is the gateway's alone.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")


def before_start(config: VllmConfig, *, threads: int) -> None:
    """Set what this process's engine, and its children, go by; these end with their parents."""
    os.environ[PARENT] = str(os.getpid())
    tie_forks()
    if config.device == "cpu":
        # Binding keeps a worker on one core, whatever else runs there.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if config.eager:
            _compile_nothing()


def _compile_nothing() -> None:
    """vLLM compiles some functions even when eager, at the first request that asks for log-probabilities: seconds of a C++ compiler."""
    import torch._dynamo.config

    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    torch._dynamo.config.disable = True
