"""From settings to encode workers: how many, and where each runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from foveate.core.errors import StartupError
from foveate.decisions.scaling import ScaleTerms
from foveate.encoders.messages import EncoderConfig
from foveate.encoders.pool import EncoderPool
from foveate.encoders.port import Encoder
from foveate.encoders.workers import PoolConfig
from foveate.models.files import ModelFiles
from foveate.models.memory import check_memory
from foveate.observe.load import Load
from foveate.runtime.port import Runtime
from foveate.settings import ENCODERS_MAX, Settings, TopologySettings


def check_topology(settings: Settings) -> None:
    """Raise StartupError for a topology that cannot be."""
    chosen = settings.topology
    if chosen.kind == "e-p-d" and settings.engine.kind == "vllm" and settings.runtime.kind == "ray":
        raise StartupError(
            "With --engine vllm the topology e-p-d is of one machine, whose loopback interface K/V go through: on Ray use e-pd."
        )
    if chosen.kind == "e-p-d" and settings.engine.count > 1:
        raise StartupError(
            "With the topology e-p-d, topology.prefill and topology.decode say how many processes there are: leave out --engines."
        )
    if chosen.kind != "agg" and settings.engine.kind == "upstream":
        raise StartupError("The topology is of an engine that runs here: with --engine upstream leave out --topology.")
    if settings.model.encoder and settings.engine.kind == "upstream":
        raise StartupError(
            "An encoder of one's own is for an engine that runs here: with --engine upstream leave out --encoder."
        )
    if chosen.encoders_max is not None and chosen.encoders_max < chosen.encoders:
        raise StartupError(
            f"topology.encoders_max is {chosen.encoders_max}, less than topology.encoders: raise it, or leave it out."
        )
    if settings.runtime.kind == "ray":
        return  # the cores are those of other machines
    for name, cpus in (
        ("engine.cpus", settings.engine.cpus),
        ("media.cpus", settings.media.cpus),
        ("topology.encoder_cpus", chosen.encoder_cpus),
        ("topology.prefill_cpus", chosen.prefill_cpus),
        ("topology.decode_cpus", chosen.decode_cpus),
    ):
        _check_cpus(name, cpus)


def _check_cpus(name: str, cpus: Iterable[int]) -> None:
    there = os.sched_getaffinity(0)
    missing = sorted(set(cpus) - there)
    if missing:
        raise StartupError(
            f"{name} names the core {missing[0]}, which this process may not run on. It may on: {', '.join(map(str, sorted(there)))}."
        )


def idle(settings: Settings) -> Iterator[str]:
    """Yield what was set for processes that there are none of with this topology, until it is changed while serving."""
    chosen, plain = settings.topology, TopologySettings()
    of = {"e-pd": ("encoders", "encoders_max"), "e-p-d": ("prefill", "decode")}
    without = {"agg": ("e-pd", "e-p-d"), "e-pd": ("e-p-d",), "e-p-d": ()}
    for kind in without[chosen.kind]:
        for name in of[kind]:
            if getattr(chosen, name) != getattr(plain, name):
                yield f"topology.{name} has no effect with the topology {chosen.kind}: it is for --topology {kind}"
    if chosen.target_queue_ms != plain.target_queue_ms and chosen.encoders_max is None:
        yield "topology.target_queue_ms has no effect without topology.encoders_max: the number of encode workers is fixed"


def crowded(settings: Settings) -> Iterator[str]:
    """Yield which processes are to have more threads than cores: these then wait for each other, which is slower than fewer of them."""
    chosen, engine = settings.topology, settings.engine
    if settings.runtime.kind == "ray" or engine.kind == "upstream":
        return  # the cores are those of other machines, or nothing is computed here
    apart = chosen.kind == "e-p-d"
    placed = (
        ("engine.threads", engine.threads, engine.cpus, 0 if apart else engine.count),
        ("topology.encoder_threads", chosen.encoder_threads, chosen.encoder_cpus, chosen.encoders if chosen.kind != "agg" else 0),
        ("topology.prefill_threads", chosen.prefill_threads, chosen.prefill_cpus, chosen.prefill if apart else 0),
        ("topology.decode_threads", chosen.decode_threads, chosen.decode_cpus, chosen.decode if apart else 0),
    )  # fmt: skip
    for name, threads, cpus, processes in placed:
        cores = min((len(set(dealt_out)) for dealt_out in dealt(cpus, processes)), default=len(os.sched_getaffinity(0)))
        if processes and threads > cores:
            yield f"{name} is {threads}, but such a process may run on {cores} of the cores: leave it out, or lower it"


def engine_encodes(settings: Settings) -> bool:
    """Tell whether the engine's process is to hold a vision tower."""
    return settings.topology.kind == "agg" or settings.topology.fallback == "local"


def encoders_of(
    settings: Settings,
    files: ModelFiles,
    engine: Encoder,
    *,
    runtime: Runtime,
    number: int,
    load: Load,
    workers: int | None = None,
) -> EncoderPool:
    """Return the encode workers of the model's version ``number``, not started; none with ``agg``, where ``engine`` does it all.

    ``workers``: other than the settings say.
    """
    chosen = settings.topology
    if workers is None:
        workers = 0 if chosen.kind == "agg" else chosen.encoders
    planned = max(workers, chosen.encoders, chosen.encoders_max or 0)  # more may be asked for later
    config = PoolConfig(
        workers=workers,
        first_index=number * ENCODERS_MAX,
        config=EncoderConfig(
            files.directory,
            device=chosen.encoder_device or settings.model.device,
            dtype=settings.model.dtype,
            batch_max=settings.engine.encoder_batch_max,
            batch_tokens_max=settings.engine.encoder_batch_tokens_max,
            own_encoder=settings.model.encoder or "",
        ),
        queue_max=settings.engine.encoder_queue_max,
        threads=chosen.encoder_threads or threads_each(planned, chosen.encoder_cpus),
        cpus=dealt(chosen.encoder_cpus, planned),
        hang_seconds=chosen.hang_seconds,
        batch_seconds_max=chosen.encode_seconds_max,
        start_seconds_max=settings.server.start_seconds_max,
    )
    pool = EncoderPool(
        runtime, config, local=engine, load=load, check_room=partial(_check_room, settings, files.directory)
    )
    pool.step_in(engine_encodes(settings))
    return pool


def _check_room(settings: Settings, directory: str, more: int) -> None:
    """Raise StartupError where this machine has no memory for so many encode workers more."""
    towers = encoders_in_memory(settings, more)
    if towers:
        check_memory(directory, Path(directory).name, dtype=settings.model.dtype, copies=0, towers=towers)


def encoders_in_memory(settings: Settings, workers: int | None = None) -> int:
    """Return how many encode workers may hold the model's vision tower in this machine's main memory, when there are most of them.

    ``workers``: other than the settings say. An operator's own encoder has weights that nobody here can count.
    """
    chosen = settings.topology
    if (chosen.encoder_device or settings.model.device) != "cpu" or settings.model.encoder:
        return 0
    if settings.runtime.kind == "ray":
        return 0  # where they run is the cluster's to say
    if workers is not None:
        return workers
    return 0 if chosen.kind == "agg" else max(chosen.encoders, chosen.encoders_max or 0)


def scale_terms(settings: Settings) -> ScaleTerms | None:
    """Return by what the number of encode workers follows their queue; None where it is fixed."""
    chosen = settings.topology
    if chosen.kind == "agg" or chosen.encoders_max is None:
        return None
    return ScaleTerms(chosen.encoders, chosen.encoders_max, chosen.target_queue_ms / 1e3)


def threads_each(workers: int, cpus: Sequence[int] = (), *, others: int = 0) -> int:
    """Return the threads of each worker where they share these cores; without any, all cores but one, with ``others`` besides."""
    if cpus:
        return max(1, len(set(cpus)) // workers)
    return max(1, (len(os.sched_getaffinity(0)) - 1) // (workers + others))


def dealt(cpus: Sequence[int], workers: int) -> tuple[tuple[int, ...], ...]:
    """Deal cores out in turn; where there are fewer of them than workers, each worker has one and shares it."""
    places = min(len(cpus), workers)
    return tuple(tuple(cpus[place::places]) for place in range(places))
