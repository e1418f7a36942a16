"""vLLM's executors and worker, tied to our engine process: when that is killed, nothing of vLLM is left.

vLLM's core is a process of its own. When its front end is killed it waits for messages for ever, with the model in memory. These classes
run inside the core and its worker, before they load anything.
"""

from __future__ import annotations

import os
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from foveate.engines.vllm.environment import PARENT
from foveate.runtime.local.bootstrap import die_with_parent


class TiedMultiprocExecutor(MultiprocExecutor):  # type: ignore[misc]
    """One process a device."""

    def _init_executor(self) -> None:
        die_with_parent(int(os.environ[PARENT]))
        super()._init_executor()


class TiedUniProcExecutor(UniProcExecutor):  # type: ignore[misc]
    """The model in the core's own process: for a single device, a CPU too.

    vLLM gives a CPU's model a process of its own, to bind its threads, which are not bound here. Two processes that hand each other every
    step look for messages without pause for a second after each: two cores full, and a first token of 12 ms that took 35.
    """

    def _init_executor(self) -> None:
        die_with_parent(int(os.environ[PARENT]))
        super()._init_executor()


if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker

    class TiedCpuWorker(CPUWorker):  # type: ignore[misc]
        """Holds the model on a CPU, in the core's process or in one of its children; either ends with its parent."""

        def __init__(self, *given: Any, **named: Any) -> None:
            die_with_parent(os.getppid())
            super().__init__(*given, **named)
