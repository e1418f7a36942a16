"""The runtime that the settings name, and what each role's workers take of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.port import Runtime, WorkerSpec
from foveate.settings import Settings


async def runtime_of(
    settings: Settings, arena: Arena, *, model_modules: Sequence[str], modules: Sequence[str]
) -> Runtime:
    """Return it, ready to start workers. Raises StartupError where Ray is not installed or has no cluster.

    All workers of one machine are forked from a process that has imported ``model_modules`` and ``modules``. On a cluster each has its own,
    which imports its own entry instead of ``modules``.
    """
    if settings.runtime.kind == "local":
        return LocalRuntime(arena, preload=(*model_modules, *modules))
    from foveate.runtime.ray.cluster import ClusterConfig
    from foveate.runtime.ray.runtime import RayRuntime  # here, as Ray need not be installed

    config = ClusterConfig(settings.runtime.ray_address, needs_of(settings))
    return await RayRuntime.connected(arena, config, preload=model_modules)


def needs_of(settings: Settings) -> Callable[[WorkerSpec], Mapping[str, float]]:
    """Return what tells what a worker takes of its node, by Ray's names of resources."""
    chosen, topology, device = settings.runtime, settings.topology, settings.model.device
    by_role = {
        "media": _needs(chosen.media_needs, "cpu"),
        "encoder": _needs(chosen.encoder_needs, topology.encoder_device or device),
        "engine": _needs(chosen.engine_needs, device),
        "prefill": _needs(chosen.prefill_needs, topology.prefill_device or device),
        "decode": _needs(chosen.decode_needs, topology.decode_device or device),
    }

    def needs(spec: WorkerSpec) -> Mapping[str, float]:
        # What else there is, the reference of a comparison while a server starts, computes on a CPU.
        return by_role.get(spec.needs or spec.role, by_role["media"])

    return needs


def _needs(given: Sequence[str], device: str) -> dict[str, float]:
    if not given:
        return {"CPU": 1.0} if device == "cpu" else {"CPU": 1.0, "GPU": 1.0}
    named = (one.partition("=") for one in given)
    return {name: float(amount) for name, _, amount in named}
