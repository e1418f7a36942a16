"""One version of the model: its files, its workers, its engine, its side of the prompt."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from foveate.core.errors import StartupError
from foveate.core.media import Appearance
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.media.messages import WorkerConfig
from foveate.media.pool import MediaPool, PoolConfig
from foveate.models.loading import ModelFiles, resolve_model
from foveate.models.memory import check_memory
from foveate.models.port import PromptSide
from foveate.observe.logging import get_logger
from foveate.runtime.local.runtime import LocalRuntime
from foveate.settings import Settings

MEDIA_WORKERS_MAX = 8
Say = Callable[[str], None]
log = get_logger(__name__)


async def find_model(settings: Settings, say: Say) -> tuple[ModelFiles, str]:
    """Find the model and its name. Raises StartupError when there is none, or this machine's memory cannot hold it."""
    files = await asyncio.to_thread(resolve_model, settings.model.path)
    name = served_name(settings, files)
    say(f"loading {name} ({files.family}); importing its libraries takes some seconds")
    if settings.model.device == "cpu":
        check_memory(files.directory, name, dtype=settings.model.dtype)
    return files, name


def served_name(settings: Settings, files: ModelFiles) -> str:
    """Return the name clients use: the one that was set, else the hub id, else the directory's last part."""
    return settings.model.served_name or (Path(files.name).name if Path(files.name).is_dir() else files.name)


async def load(
    load_prompt: Callable[[], PromptSide], media: MediaPool, engine: EmbeddedEngine, scope: AsyncExitStack
) -> PromptSide:
    """Start workers and engine while the prompt side loads. The first failure ends the others."""
    scope.push_async_callback(media.stop, seconds_max=1.0)
    scope.push_async_callback(engine.stop, seconds_max=2.0)
    try:
        async with asyncio.TaskGroup() as tasks:
            prompt_side = tasks.create_task(asyncio.to_thread(load_prompt))
            tasks.create_task(media.start())
            tasks.create_task(engine.start())
    except* StartupError as group:
        raise group.exceptions[0] from None
    return prompt_side.result()


def engine_of(settings: Settings, files: ModelFiles, name: str, runtime: LocalRuntime, say: Say) -> EmbeddedEngine:
    chosen = settings.engine
    config = EmbeddedConfig(
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
    )
    return EmbeddedEngine(
        runtime,
        config,
        threads=chosen.threads or _spare_cores(),
        start_seconds_max=settings.server.start_seconds_max,
        on_progress=lambda text: say(f"engine: {text}"),
        on_restart=lambda: log.warning("the engine is back"),
    )


def pool_config(settings: Settings, files: ModelFiles) -> PoolConfig:
    media = settings.media
    return PoolConfig(
        workers=media.workers or min(_spare_cores(), MEDIA_WORKERS_MAX),
        config=WorkerConfig(files.directory, appearance(settings), media.decode_pixels_max),
        queue_depth_max=media.queue_depth_max,
        job_seconds_max=media.job_seconds_max,
        memory_bytes_max=media.worker_memory_bytes_max,
        start_seconds_max=settings.server.start_seconds_max,
    )


def appearance(settings: Settings) -> Appearance:
    media = settings.media
    red, green, blue = bytes.fromhex(media.background.removeprefix("#"))
    return Appearance((red, green, blue), media.icc_to_srgb, media.truncated_accepted)


def _spare_cores() -> int:
    """Cores that workers may fill by default. One is left to the gateway, which needs little, but at once."""
    return max(1, len(os.sched_getaffinity(0)) - 1)
