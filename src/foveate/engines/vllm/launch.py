"""Start ``AsyncLLM`` for a model, with Foveate's choices."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from vllm.config import ECTransferConfig, KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from foveate.core.errors import StartupError
from foveate.engines.vllm import executor
from foveate.engines.vllm.config import PIXEL_FAMILIES, VllmConfig
from foveate.engines.vllm.grammars import BACKENDS, Grammars

_CPU_KV_BYTES = 2**30
"""vLLM for CPU would otherwise take nine tenths of the machine's memory."""


def engine_args(config: VllmConfig) -> AsyncEngineArgs:
    """Return vLLM's arguments. Raises StartupError for an argument that it does not have."""
    cpu = current_platform.is_cpu()
    if cpu != (config.device == "cpu"):
        raise StartupError(
            f"The installed vLLM is for {current_platform.device_type}, and model.device is {config.device}. Choose the one it is for."
        )
    given: dict[str, Any] = {
        "model": config.model_dir,
        "served_model_name": config.model,
        "dtype": config.dtype,
        "enforce_eager": config.eager,
        "max_num_seqs": config.batch_size_max,
        "mm_processor_cache_gb": 0,
        "enable_log_requests": False,
        "structured_outputs_config": {"backend": "xgrammar"},
    }
    if config.family in PIXEL_FAMILIES:
        # The tower is vLLM's. On a CPU nothing is measured by a run of it: the KV cache has a fixed size.
        given |= {"limit_mm_per_prompt": {"video": 0}, "skip_mm_profiling": cpu}
    else:
        given |= {"enable_mm_embeds": True, "limit_mm_per_prompt": {"image": 0, "video": 0}}
    if config.family == "qwen3_vl":
        # Without a tower vLLM takes the model to have no DeepStack either, and the levels of our embeddings do not fit it.
        given |= {"limit_mm_per_prompt": {"image": 0, "video": 1}, "skip_mm_profiling": True}
    if config.by_name and config.family not in PIXEL_FAMILIES:
        given["ec_transfer_config"] = ECTransferConfig(
            ec_connector="EmbeddingsConnector",
            ec_connector_module_path="foveate.engines.vllm.connector",
            ec_role="ec_consumer",
            ec_connector_extra_config={"pid": os.getpid()},
        )
    if config.role:
        given["kv_transfer_config"] = _handing_on(config)
    if config.reasoning_parser:
        given["reasoning_parser"] = config.reasoning_parser
    if config.kv_cache_bytes or cpu:
        given["kv_cache_memory_bytes"] = config.kv_cache_bytes or _CPU_KV_BYTES
    given |= config.args
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise StartupError(f"vLLM has no argument {', '.join(unknown)} (setting vllm.args).")
    if config.family in PIXEL_FAMILIES and (cpu or current_platform.is_cuda_alike()):
        given.setdefault("worker_cls", "foveate.engines.vllm.timed_worker.TimedWorker")
    if "distributed_executor_backend" not in given:
        several = int(given.get("tensor_parallel_size", 1)) * int(given.get("pipeline_parallel_size", 1)) > 1
        kind = executor.TiedMultiprocExecutor if several else executor.TiedUniProcExecutor
        given["distributed_executor_backend"] = kind
    return AsyncEngineArgs(**given)


def _handing_on(config: VllmConfig) -> KVTransferConfig:
    """Return how K/V go from one vLLM to another."""
    return KVTransferConfig(
        kv_connector="NixlConnector",
        kv_connector_module_path="foveate.engines.vllm.kv_connector",
        kv_role="kv_producer" if config.role == "p" else "kv_consumer",
        # What cannot be read is computed: the process has all that this takes.
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"kv_lease_duration": config.lease_seconds},
    )


def launch(config: VllmConfig) -> tuple[AsyncLLM, Grammars]:
    """Return a running ``AsyncLLM``, and what checks constraints for it. Raises StartupError.

    Call it on the event loop that uses it, before this process has computed anything with several threads: its children are forked.
    """
    arguments = engine_args(config)
    try:
        made = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
        backend = made.structured_outputs_config.backend
        if backend not in BACKENDS:
            raise StartupError(
                f"vllm.args: structured_outputs_config.backend should be one of {', '.join(BACKENDS)}, not {backend}."
            )
        if current_platform.is_cpu():
            # vLLM spawns, to give its children other environment variables; we need none, and a fork has everything imported already.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        grammars = Grammars.start(made)
        return AsyncLLM.from_vllm_config(made, usage_context=UsageContext.ENGINE_CONTEXT), grammars
    except StartupError:
        raise
    except Exception as error:  # vLLM raises whatever it comes upon; its own log above tells more.
        first = str(error).strip().partition("\n")[0][:300]
        raise StartupError(
            f"vLLM cannot start with this model: {first or type(error).__name__}", detail=repr(error)
        ) from error


def kv_bytes_per_token(engine: AsyncLLM) -> int:
    """Return the bytes of keys and values that a prompt's token takes, in all layers, in the model's dtype."""
    model = engine.model_config
    heads = model.get_total_num_kv_heads() * model.get_head_size()
    return int(2 * model.get_total_num_hidden_layers() * heads * model.dtype.itemsize)


def rows_max(engine: AsyncLLM) -> int:
    """Return how many embedding rows one picture may have: vLLM keeps them in its encoder cache."""
    return int(engine.input_processor.mm_encoder_cache_size)
