"""vLLM's executors, tied to our engine process: when that is killed, nothing of vLLM is left.

vLLM's core is a process of its own. When its front end is killed it waits for messages for ever, with the model in memory. Where it is
forked, the fork ties it (:func:`foveate.runtime.local.bootstrap.tie_forks`); where vLLM spawns it, as for accelerators, these classes do,
which run inside it before it loads anything. Its workers end by vLLM's own pipe to them.
"""

from __future__ import annotations

import os

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
