"""One version of the model: its files, its workers, its engine, its side of the prompt."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

from foveate.assembly.encoders import encoders_in_memory, encoders_of
from foveate.assembly.engines import engine_of, engines_in_memory, spare_cores, takes_pixels
from foveate.assembly.reference import agreed, reference_of
from foveate.assembly.supply import Shared
from foveate.core.errors import StartupError
from foveate.core.media import Appearance
from foveate.engines.embedded.roles import RoleFleet
from foveate.journey.self_check import check_embeddings
from foveate.journey.serving import Serving
from foveate.journey.text import TextWork
from foveate.journey.warm import warm
from foveate.media.messages import WorkerConfig
from foveate.media.pool import MediaPool, PoolConfig
from foveate.models.files import ModelFiles, resolve_model
from foveate.models.loading import load_prompt_side
from foveate.models.memory import check_memory
from foveate.models.own_encoder import load_own_prompt_side
from foveate.models.own_source import source_of
from foveate.models.port import PromptSide
from foveate.observe.logging import get_logger
from foveate.settings import Settings

MEDIA_WORKERS_MAX = 8
Say = Callable[[str], None]
log = get_logger(__name__)


async def find_model(
    path: str | None, settings: Settings, say: Say, *, encode_workers: int | None = None
) -> tuple[ModelFiles, str]:
    """Find the model and its name. Raises StartupError when there is none, or this machine's memory cannot hold it.

    ``encode_workers``: other than the settings say.
    """
    files = await asyncio.to_thread(resolve_model, path)
    name = served_name(settings, files)
    say(f"loading {name} ({files.family}); importing its libraries takes some seconds")
    if settings.model.encoder:
        await asyncio.to_thread(source_of, settings.model.encoder)  # imports it
        say(
            f"pictures are encoded by {settings.model.encoder}: its embeddings are held to rows, width and finite values, and not compared "
            "with the checkpoint's"
        )
    copies, towers = engines_in_memory(settings), encoders_in_memory(settings, encode_workers)
    if copies or towers:
        await asyncio.to_thread(
            check_memory, files.directory, name, dtype=settings.model.dtype, copies=copies, towers=towers
        )
    return files, name


def served_name(settings: Settings, files: ModelFiles) -> str:
    """Return the name clients use: the one that was set, else the hub id, else the directory's last part."""
    return settings.model.served_name or (Path(files.name).name if Path(files.name).is_dir() else files.name)


async def load_version(
    files: ModelFiles, name: str, settings: Settings, shared: Shared, *, number: int, encode_workers: int | None = None
) -> Serving:
    """Start a version's workers and engine while its prompt side loads, and take a picture through them.

    ``number`` counts the versions that this server had. ``encode_workers``: other than the settings say.
    The first failure ends the others: raises StartupError with none left running.
    """
    runtime, load = shared.runtime, shared.load
    media = MediaPool(runtime, pool_config(settings, files, number), load)
    engine = engine_of(settings, files, name, shared)
    reference = reference_of(settings, files, engine, runtime=runtime, number=number)
    encoders = encoders_of(settings, files, engine, runtime=runtime, number=number, load=load, workers=encode_workers)
    loading: list[TextWork] = []

    async def stop() -> None:
        for text in loading:
            text.close()
        if reference is not None:
            await reference.stop()
        await encoders.stop(seconds_max=2.0)
        await engine.stop(seconds_max=2.0)
        await media.stop(seconds_max=1.0)

    try:
        async with asyncio.TaskGroup() as tasks:
            prompt_side = tasks.create_task(asyncio.to_thread(_prompt_side, settings, files))
            tasks.create_task(media.start())
            tasks.create_task(engine.start())
            if reference is not None:
                tasks.create_task(reference.start(seconds_max=settings.server.start_seconds_max))
            tasks.create_task(encoders.start())
        if encoders.expect(engine.info.encoder_version):
            raise StartupError("The encode workers have loaded another vision encoder than the engine. Start again.")
        loading.append(text := TextWork(prompt_side.result()))
        serving = Serving(
            files.name, prompt_side.result(), text, media, encoders, engine, restarts=lambda: engine.restarts, stop=stop,
            encoders=encoders, roles=engine if isinstance(engine, RoleFleet) else None,
        )  # fmt: skip
        await warm(serving, runtime.arena)
        if reference is not None:
            shared.say(agreed(await check_embeddings(serving, reference, runtime.arena), reference))
            await reference.stop()
        if settings.model.encoder or settings.engine.kind != "embedded" or settings.topology.kind != "agg":
            # What was compared, here or with an upstream, is this encoder; and encode workers are held to it too. An operator's own that
            # came back with changed code would be given what media workers made by the code before.
            engine.hold()
    except BaseException as error:
        await stop()
        if isinstance(error, BaseExceptionGroup):
            first = error.subgroup(StartupError)
            if first is not None:
                raise first.exceptions[0] from None
        raise
    return serving


def _prompt_side(settings: Settings, files: ModelFiles) -> PromptSide:
    if settings.model.encoder:
        return load_own_prompt_side(files, appearance(settings), settings.model.encoder)
    return load_prompt_side(files, appearance(settings), pixels=takes_pixels(settings, files))


def another_version(
    settings: Settings, shared: Shared, *, now: Callable[[], Serving]
) -> Callable[[str, str | None], Awaitable[Serving]]:
    """Return what loads further versions beside the first, under the name that clients know the first by: of a model, with an operator's
    own encoder (empty: the model's, None: that of the settings), in the topology of the version that serves ``now``.
    """
    numbers = itertools.count(1)

    async def loaded(path: str, encoder: str | None) -> Serving:
        serving = now()
        chosen = as_now(settings, serving)
        if encoder is not None:
            chosen = chosen.model_copy(update={"model": settings.model.model_copy(update={"encoder": encoder or None})})
        workers = None if serving.encoders is None else serving.encoders.wanted
        files, name = await find_model(path, chosen, shared.say, encode_workers=workers)
        number = next(numbers)
        return await load_version(files, name, chosen, shared, number=number, encode_workers=workers)

    return loaded


def as_now(settings: Settings, serving: Serving) -> Settings:
    """Return the settings with the topology that the server was given since."""
    roles = serving.roles
    if roles is None:
        return settings
    numbers = {"prefill": roles.count("p"), "decode": roles.count("d")} if roles.topology == "e-p-d" else {}
    topology = settings.topology.model_copy(update={"kind": roles.topology, **numbers})
    return settings.model_copy(update={"topology": topology})


def pool_config(settings: Settings, files: ModelFiles, number: int) -> PoolConfig:
    media = settings.media
    workers = media.workers or min(spare_cores(), MEDIA_WORKERS_MAX)
    return PoolConfig(
        workers=workers,
        first_index=number * workers,
        config=WorkerConfig(
            files.directory,
            appearance(settings),
            media.decode_pixels_max,
            takes_pixels(settings, files),
            settings.model.encoder or "",
            source_of(settings.model.encoder) if settings.model.encoder else "",
        ),
        queue_depth_max=media.queue_depth_max,
        job_seconds_max=media.job_seconds_max,
        memory_bytes_max=media.worker_memory_bytes_max,
        start_seconds_max=settings.server.start_seconds_max,
        cpus=media.cpus,
    )


def appearance(settings: Settings) -> Appearance:
    media = settings.media
    red, green, blue = bytes.fromhex(media.background.removeprefix("#"))
    return Appearance((red, green, blue), media.icc_to_srgb, media.truncated_accepted)
