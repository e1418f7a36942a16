"""What vLLM reads from the environment. Set before it is imported or started, and only where the operator has not."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Final

from foveate.engines.vllm.config import VllmConfig
from foveate.engines.vllm.socket_files import SocketFiles
from foveate.runtime.local.bootstrap import tie_forks

PARENT: Final = "FOVEATE_VLLM_PARENT"
"""Environment variable with the engine process's id, for vLLM's processes to end with it where they are spawned, not forked."""

LOOPBACK: Final = "127.0.0.1"


def before_import() -> None:
    """Set what is read once, at import."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # Standard output is the gateway's alone.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")


def before_start(config: VllmConfig, *, threads: int) -> SocketFiles:
    """Set what this process's engine, and its children, go by; these end with their parents.

    Returns where their sockets lie, to be removed at the end. Raises OSError when the temporary directory cannot be written.
    """
    os.environ[PARENT] = str(os.getpid())
    sockets = SocketFiles(Path(tempfile.gettempdir()))
    os.environ.setdefault("VLLM_RPC_BASE_PATH", str(sockets.path))
    tie_forks()
    if config.device == "cpu":
        # Binding keeps a worker on one core, whatever else runs there.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if config.eager:
            _compile_nothing()
    return sockets


def before_handing_on(config: VllmConfig) -> socket.socket:
    """Set how this process's K/V are found and go: through the loopback interface, for they are prompts, and nothing asks who reads them.

    Returns what keeps the port for vLLM, which binds it later, and from another process; to be held as long as this one lives.
    """
    kept = socket.socket()
    # Two may be bound to one port when both say so and none listens yet (socket(7)); ZeroMQ, which will, says so.
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind((LOOPBACK, 0))
    os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = LOOPBACK
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(kept.getsockname()[1])
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    # As vLLM has it, which only sets it where NIXL was not imported yet.
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    if config.device == "cpu":
        os.environ.setdefault("UCX_TLS", "tcp,self")
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
    return kept


def _compile_nothing() -> None:
    """vLLM compiles some functions even when eager, at the first request that asks for log-probabilities: seconds of a C++ compiler."""
    import torch._dynamo.config

    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    torch._dynamo.config.disable = True
