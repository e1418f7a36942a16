"""Which vLLM this code is for, and whether the installed one has what the code uses.

vLLM moves its interfaces between minor releases, so that a version is either tested or asked for explicitly; and whatever the version,
every interface is looked for before anything is loaded, because what is missing would otherwise show in the middle of a request.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any, Final

from foveate.core.errors import StartupError

TESTED: Final = ("0.32",)
"""Minor releases that the contract tests pass with (docs/vllm.md)."""

INTERFACES: Final = (
    ("vllm", "SamplingParams"),
    ("vllm.config", "ECTransferConfig"),
    *(
        ("vllm.distributed.ec_transfer.ec_connector.base", f"ECConnectorBase.{name}")
        for name in (
            "build_connector_meta",
            "ensure_cache_available",
            "has_cache_item",
            "request_finished",
            "start_load_caches",
            "take_unavailable_requests",
            "update_state_after_alloc",
        )
    ),
    ("vllm.engine.arg_utils", "AsyncEngineArgs.create_engine_config"),
    ("vllm.exceptions", "VLLMClientError"),
    ("vllm.exceptions", "VLLMValidationError"),
    ("vllm.inputs.engine", "mm_input"),
    ("vllm.inputs.engine", "tokens_input"),
    ("vllm.model_executor.models.interfaces", "SupportsMultiModal.embed_multimodal"),
    ("vllm.multimodal.inputs", "MultiModalFieldConfig.batched"),
    ("vllm.multimodal.inputs", "MultiModalFieldConfig.flat_from_sizes"),
    ("vllm.multimodal.inputs", "MultiModalKwargsItems.from_hf_inputs"),
    ("vllm.multimodal.inputs", "PlaceholderRange"),
    ("vllm.multimodal.processing", "BaseMultiModalProcessor.apply"),
    ("vllm.multimodal.processing.context", "TimingContext"),
    ("vllm.multimodal.processing.inputs", "ProcessorInputs"),
    ("vllm.parser", "ParserManager.get_parser"),
    ("vllm.parser.abstract_parser", "DelegatingParser.adjust_request"),
    ("vllm.parser.abstract_parser", "DelegatingParser.parse"),
    ("vllm.parser.abstract_parser", "DelegatingParser.parse_delta"),
    ("vllm.renderers.base", "BaseRenderer.get_mm_processor"),
    ("vllm.renderers.chat_utils", "make_tool_call_id"),
    ("vllm.sampling_params", "RepetitionDetectionParams"),
    ("vllm.sampling_params", "RequestOutputKind.DELTA"),
    ("vllm.sampling_params", "SamplingParams.verify"),
    ("vllm.sampling_params", "StructuredOutputsParams"),
    ("vllm.tokenizers", "cached_tokenizer_from_config"),
    ("vllm.tool_parsers.abstract_tool_parser", "ToolParser.supports_required_and_named"),
    ("vllm.v1.engine.async_llm", "AsyncLLM.from_vllm_config"),
    ("vllm.v1.engine.async_llm", "AsyncLLM.generate"),
    ("vllm.v1.engine.async_llm", "AsyncLLM.is_sleeping"),
    ("vllm.v1.engine.exceptions", "EngineDeadError"),
    ("vllm.v1.structured_output.backend_guidance", "GuidanceBackend.compile_grammar"),
    ("vllm.v1.structured_output.backend_xgrammar", "XgrammarBackend.compile_grammar"),
    ("vllm.v1.structured_output.request", "get_structured_output_key"),
    ("vllm.v1.executor.multiproc_executor", "MultiprocExecutor._init_executor"),
    ("vllm.v1.executor.uniproc_executor", "UniProcExecutor._init_executor"),
    ("vllm.v1.worker.worker_base", "WorkerBase.execute_model"),
    ("vllm.v1.worker.worker_base", "WorkerBase.load_model"),
)

HANDING_ON: Final = (
    ("nixl._api", "nixl_agent"),
    ("nixl._api", "nixlBind.nixlAgent"),
    ("nixl._api", "nixlBind.nixlAgentConfig.pthrDelay"),
    ("vllm.config", "KVTransferConfig"),
    ("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorRole.WORKER"),
    ("vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler", "NixlBaseConnectorScheduler.on_new_request"),
    ("vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector", "NixlPullConnector.on_new_request"),
    (
        "vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector",
        "NixlPullConnector.request_finished_all_groups",
    ),
    ("vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector", "NixlPullConnector.update_connector_output"),
    ("vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils", "get_base_request_id"),
    ("vllm.v1.engine.async_llm", "AsyncLLM.notify_kv_transfer_request_rejected"),
)
"""What the topology e-p-d uses besides."""

ARGUMENTS: Final = (
    "distributed_executor_backend",
    "ec_transfer_config",
    "enable_mm_embeds",
    "kv_cache_memory_bytes",
    "kv_transfer_config",
    "limit_mm_per_prompt",
    "mm_processor_cache_gb",
    "skip_mm_profiling",
)
"""Fields of ``AsyncEngineArgs``."""


def check_version(installed: str, *, untested_accepted: bool) -> None:
    """Raise StartupError for a version that is not tested, unless those are accepted."""
    minor = ".".join(installed.split(".")[:2])
    if minor in TESTED or untested_accepted:
        return
    numbers = [int(part) if part.isdigit() else 0 for part in minor.split(".")]
    oldest = [int(part) for part in TESTED[0].split(".")]
    what = "too old" if numbers < oldest else "newer than what was tested"
    raise StartupError(
        f"vLLM {installed} is {what}: Foveate is tested with {', '.join(f'{known}.x' for known in TESTED)}. Install one of these, or set "
        "vllm.untested_version to try this one."
    )


def check_interfaces(installed: str, interfaces: Sequence[tuple[str, str]] | None = None) -> None:
    """Raise StartupError that names every one of the ``interfaces`` (default: :data:`INTERFACES`) which this vLLM does not have."""
    wanted = INTERFACES if interfaces is None else interfaces
    missing = [f"{module}.{path}" for module, path in wanted if not _there(module, path)]
    if not missing:
        fields = {field.name for field in dataclasses.fields(_find("vllm.engine.arg_utils", "AsyncEngineArgs"))}
        missing = [f"AsyncEngineArgs({name})" for name in ARGUMENTS if name not in fields]
    if missing:
        raise StartupError(f"vLLM {installed} does not have what Foveate uses of it: {', '.join(missing)}.")


def _there(module: str, path: str) -> bool:
    try:
        _find(module, path)
    except (ImportError, AttributeError):
        return False
    return True


def _find(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found
