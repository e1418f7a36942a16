"""Import vLLM, for the forkserver: an engine process forked from it starts at once, and so do vLLM's own processes forked from that.

Importing vLLM takes 8 to 13 s of CPU time, and three processes need it. The imports start no thread and touch no device.
"""

from __future__ import annotations

import importlib

from foveate.engines.vllm.environment import before_import

before_import()
for _name in (
    "vllm.engine.arg_utils",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "foveate.engines.vllm.connector",
    "foveate.engines.vllm.process",
    "foveate.engines.vllm.host",
    "foveate.engines.vllm.launch",
):
    importlib.import_module(_name)
