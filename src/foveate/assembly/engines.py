"""The engine that the settings name, and what the forkserver imports for all workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import msgspec

from foveate.assembly.encoders import dealt, engine_encodes, threads_each
from foveate.assembly.supply import EmbeddedSupply, Shared, turn
from foveate.core.errors import StartupError
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.engines.embedded.split import SplitFleet
from foveate.engines.fleet import Fleet
from foveate.engines.port import Role
from foveate.engines.process_client import ProcessEngine
from foveate.engines.vllm.client import VllmEngine
from foveate.engines.vllm.config import CAUSAL_ON_CPU, PIXEL_FAMILIES, VllmConfig
from foveate.engines.vllm.config import FAMILIES as VLLM_FAMILIES
from foveate.engines.vllm.declared import check_arguments, check_parser
from foveate.engines.vllm.split import VllmSplit
from foveate.models.files import ModelFiles
from foveate.observe.logging import get_logger
from foveate.runtime.port import Runtime
from foveate.settings import Settings

log = get_logger(__name__)


def engine_of(
    settings: Settings,
    files: ModelFiles,
    name: str,
    shared: Shared,
) -> Fleet:
    """Return the engine of a version of the model, not started. Raises StartupError where it cannot run this model.

    An embedded engine can be given another topology while it serves.
    """
    if shared.room is not None:
        chosen = settings.topology
        config = _embedded_config(settings, files, name)
        return SplitFleet(
            EmbeddedSupply(settings, config, shared),
            shared.room,
            topology=chosen.kind,
            end_seconds_max=settings.server.request_seconds_max,
            load=shared.load,
        )
    if settings.topology.kind == "e-p-d":
        return _vllm_split(settings, files, name, shared)
    count = settings.engine.count
    make = _maker(settings, files, name, shared.runtime)
    cpus = dealt(settings.engine.cpus, count)
    threads = settings.engine.threads or threads_each(count, settings.engine.cpus)
    return Fleet(
        [
            make(load=shared.load, threads=threads, cpus=turn(cpus, at), **_given(settings, shared))
            for at in range(count)
        ]
    )


def engine_processes(settings: Settings) -> int:
    """Return how many processes hold the language model, of each version."""
    chosen = settings.topology
    return chosen.prefill + chosen.decode if chosen.kind == "e-p-d" else settings.engine.count


def engines_in_memory(settings: Settings) -> int:
    """Return how many of them hold it in this machine's main memory."""
    if settings.runtime.kind == "ray":
        return 0  # where they run is the cluster's to say
    chosen, device = settings.topology, settings.model.device
    if chosen.kind != "e-p-d":
        return engine_processes(settings) if device == "cpu" else 0
    roles = ((chosen.prefill, chosen.prefill_device), (chosen.decode, chosen.decode_device))
    return sum(count for count, on in roles if (on or device) == "cpu")


def _vllm_split(settings: Settings, files: ModelFiles, name: str, shared: Shared) -> VllmSplit:
    """Return vLLM's prefill workers and token-decode workers. Raises StartupError."""
    chosen, config = settings.topology, _vllm_config(settings, files, name)
    prefill: list[Role] = ["p"] * chosen.prefill
    decode: list[Role] = ["d"] * chosen.decode
    roles = prefill + decode
    placed: dict[Role, tuple[str | None, int, Sequence[int], int]] = {
        "p": (chosen.prefill_device, chosen.prefill_threads, chosen.prefill_cpus, chosen.prefill),
        "d": (chosen.decode_device, chosen.decode_threads, chosen.decode_cpus, chosen.decode),
    }
    engines: list[VllmEngine] = []
    for at, role in enumerate(roles):
        device, threads, cpus, count = placed[role]
        engines.append(
            VllmEngine(
                shared.runtime,
                # Where the engine's processes stand in for encode workers, those that prefill do: the others need no vision tower.
                msgspec.structs.replace(
                    config, device=device or config.device, encoder=config.encoder and role == "p", role=role
                ),
                load=shared.load,
                threads=threads or threads_each(count, cpus, others=len(roles) - count),
                cpus=turn(dealt(cpus, count), at - roles.index(role)),
                **_given(settings, shared),
            )
        )
    return VllmSplit(engines, roles, shared.load)


def _given(settings: Settings, shared: Shared) -> dict[str, Any]:
    """Return what every kind of engine process is given."""
    index = shared.take_number()
    named = f"engine {index}" if engine_processes(settings) > 1 else "engine"
    return {
        "index": index,
        "start_seconds_max": settings.server.start_seconds_max,
        "hang_seconds": settings.engine.hang_seconds,
        "on_progress": lambda text: shared.say(f"{named}: {text}"),
        "on_restart": lambda: log.warning("engine %d is back", index),
    }


def _maker(settings: Settings, files: ModelFiles, name: str, runtime: Runtime) -> Callable[..., ProcessEngine]:
    """Return what makes one process's client. Raises StartupError."""
    if settings.engine.kind == "vllm":
        return partial(VllmEngine, runtime, _vllm_config(settings, files, name))
    return partial(EmbeddedEngine, runtime, _embedded_config(settings, files, name))


def _embedded_config(settings: Settings, files: ModelFiles, name: str) -> EmbeddedConfig:
    chosen = settings.engine
    return EmbeddedConfig(
        model_dir=files.directory,
        model=name,
        device=settings.model.device,
        dtype=settings.model.dtype,
        queue_depth_max=chosen.queue_depth_max,
        batch_size_max=chosen.batch_size_max,
        prefill_chunk_tokens=chosen.prefill_chunk_tokens,
        kv_tokens_max=chosen.kv_tokens_max,
        prefix_cache_bytes_max=chosen.prefix_cache_bytes_max,
        encoder_queue_max=chosen.encoder_queue_max,
        encoder_batch_max=chosen.encoder_batch_max,
        encoder_batch_tokens_max=chosen.encoder_batch_tokens_max,
        step_seconds_max=chosen.step_seconds_max,
        encoder=engine_encodes(settings),
        own_encoder=settings.model.encoder or "",
    )


def takes_pixels(settings: Settings, files: ModelFiles) -> bool:
    """Whether this model's pictures go to the engine as pixels."""
    return settings.engine.kind == "vllm" and files.family in PIXEL_FAMILIES


def _vllm_config(settings: Settings, files: ModelFiles, name: str) -> VllmConfig:
    if find_spec("vllm") is None:
        raise StartupError("vLLM is not installed here: make serve-vllm installs it, or see docs/vllm.md.")
    taken = VLLM_FAMILIES | PIXEL_FAMILIES
    if files.family not in taken:
        raise StartupError(
            f"The vLLM engine does not take models of the family {files.family}, but of: {', '.join(sorted(taken))}."
        )
    if files.family in PIXEL_FAMILIES and settings.topology.kind != "agg":
        raise StartupError(
            f"vLLM encodes the pictures of the family {files.family} itself: with it leave out --topology (docs/vllm.md)."
        )
    chosen, cpu = settings.engine, settings.model.device == "cpu"
    if cpu and files.family in CAUSAL_ON_CPU:
        log.warning(
            "vLLM on a CPU lets each token of a picture see only those before it, which this model was not trained for: answers differ "
            "from the embedded engine's",
            family=files.family,
        )
    return VllmConfig(
        model_dir=files.directory,
        model=name,
        family=files.family,
        device=settings.model.device,
        dtype=settings.model.dtype,
        queue_depth_max=chosen.queue_depth_max,
        batch_size_max=chosen.batch_size_max,
        encoder_queue_max=chosen.encoder_queue_max,
        encoder_batch_max=chosen.encoder_batch_max,
        encoder_batch_tokens_max=chosen.encoder_batch_tokens_max,
        encoder=engine_encodes(settings),
        own_encoder=settings.model.encoder or "",
        kv_cache_bytes=settings.vllm.kv_cache_bytes,
        embeddings=settings.vllm.embeddings,
        embeddings_bytes_max=settings.vllm.embeddings_bytes_max,
        step_seconds_max=chosen.step_seconds_max,
        eager=settings.vllm.compile == "off" or (settings.vllm.compile == "auto" and cpu),
        untested_version=settings.vllm.untested_version,
        tool_call_parser=settings.vllm.tool_call_parser,
        reasoning_parser=settings.vllm.reasoning_parser,
        args=vllm_arguments(settings),
    )


def check_engine(settings: Settings) -> None:
    """Raise StartupError for settings of vLLM that it cannot take, as far as that is told without importing it."""
    if settings.engine.kind != "vllm":
        return
    args = vllm_arguments(settings)
    check_arguments(args)
    if settings.topology.kind == "e-p-d":
        check_handing_on(args)
    check_parser("tool_call_parser", settings.vllm.tool_call_parser)
    check_parser("reasoning_parser", settings.vllm.reasoning_parser)


def check_handing_on(args: Collection[str]) -> None:
    """Raise StartupError where the package is missing by which K/V go from one vLLM to another, or vLLM's ``args`` have another way."""
    if find_spec("nixl") is None:
        raise StartupError(
            "With the topology e-p-d vLLM hands K/V on through the package nixl, which is not installed here: install "
            "requirements/vllm-kv.txt, or see docs/vllm.md."
        )
    if "kv_transfer_config" in args:
        raise StartupError(
            "vllm.args has kv_transfer_config, which the topology e-p-d sets itself: leave out one of them."
        )


def vllm_arguments(settings: Settings) -> dict[str, Any]:
    """Return the setting ``vllm.args`` as a mapping. Raises StartupError."""
    try:
        return settings.vllm.arguments()
    except ValueError as error:
        raise StartupError(f"The setting vllm.args cannot be read: {error}.") from error


def worker_modules(settings: Settings) -> tuple[str, ...]:
    """Return what the forkserver imports once, beside the model's, so that a worker that died is replaced in milliseconds."""
    engine = "foveate.engines.vllm.preload" if settings.engine.kind == "vllm" else "foveate.engines.embedded.process"
    return "foveate.media.worker", "foveate.encoders.process", engine


def spare_cores() -> int:
    """Cores that workers may fill by default. One is left to the gateway, which needs little, but at once."""
    return max(1, len(os.sched_getaffinity(0)) - 1)
