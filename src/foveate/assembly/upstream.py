"""A server whose engines are other servers: the same door, no model of its own. With ``--model`` it knows the prices of media exactly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from foveate.assembly import bounds, gauges, rules
from foveate.assembly.checks import check
from foveate.assembly.version import Say, appearance, pool_config
from foveate.caches.aliases import Aliases
from foveate.caches.bad_media import BadMedia
from foveate.caches.keys import EncoderKey
from foveate.caches.single_flight import SingleFlight
from foveate.core.errors import StartupError
from foveate.engines.upstream.absent import NoEngine
from foveate.engines.upstream.relay import UpstreamRelay
from foveate.journey.job import Got, Made, Wanted
from foveate.journey.reload import Reloads
from foveate.journey.roll_out import RollOut
from foveate.journey.service import Journey
from foveate.journey.serving import Serving
from foveate.journey.text import TextWork
from foveate.journey.tools import Tools
from foveate.media.pool import MediaPool
from foveate.models.loading import ModelFiles, load_prompt_side, resolve_model
from foveate.models.port import PromptSide
from foveate.models.unknown import UnknownModel
from foveate.observe.metrics import Metrics
from foveate.runtime.local.runtime import LocalRuntime
from foveate.settings import Settings

WORKER_MODULES = ("foveate.media.worker", "foveate.media.video")


@asynccontextmanager
async def upstream_journey(
    settings: Settings, *, say: Say, read: Callable[[], Settings] | None = None
) -> AsyncIterator[Journey]:
    """Build everything behind the API, ready to pass requests on; leaving ends every worker. Raises StartupError."""
    async with AsyncExitStack() as scope:
        checked = check(settings)
        assert checked.relay is not None, "checked for --engine upstream"
        metrics = Metrics()
        reloads = Reloads(checked.reading, lambda: check(read() if read is not None else settings).reading, metrics)
        fetcher = rules.fetcher(settings, scope, name_servers=checked.name_servers, proxy=checked.proxy)
        request_log = gauges.request_log(settings.log, scope)
        files = await _model(settings, say)
        arena = bounds.arena(checked.arena_bytes)
        runtime = LocalRuntime(arena, preload=WORKER_MODULES)
        scope.push_async_callback(runtime.close)
        # No picture is processed here, so that workers need no model.
        media = MediaPool(runtime, pool_config(settings, ModelFiles("", "", "unknown"), 0))
        relay = UpstreamRelay(checked.relay, arena, say=say)
        engine = NoEngine(relay)
        fetches: SingleFlight[Wanted, Got] = SingleFlight(Got.release)
        flights: SingleFlight[EncoderKey, Made] = SingleFlight(Made.release)
        scope.push_async_callback(fetches.aclose)
        scope.push_async_callback(flights.aclose)
        prompt_side = await _load(settings, files, media, relay, scope)
        text = TextWork(prompt_side)
        scope.callback(text.close)
        serving = Serving(
            files.name if files else "", prompt_side, text, media, engine, engine, restarts=lambda: 0, stop=relay.stop
        )
        tools = Tools(
            limits=bounds.limits(settings),
            arena=arena,
            roll_out=RollOut(serving),
            rules=reloads.live,
            reloads=reloads,
            fetcher=fetcher,
            processor_cache=bounds.processor_cache(settings.cache, arena),
            encoder_cache=bounds.encoder_cache(settings.cache, arena),
            media_cache=bounds.media_cache(settings.cache, arena),
            bad_media=BadMedia(settings.cache.bad_media_seconds),
            aliases=Aliases(settings.cache.aliases_max),
            fetches=fetches,
            flights=flights,
            observer=gauges.observer(settings, metrics, request_log, scope),
            metrics=metrics,
            multimodal_places=bounds.places(settings),
            in_flight=bounds.in_flight(settings),
            relay=relay,
        )
        lag = await scope.enter_async_context(gauges.loop_lag(metrics))
        gauges.bind(metrics, tools, lag, request_log)
        yield Journey(tools, models=())


async def _model(settings: Settings, say: Say) -> ModelFiles | None:
    """Find the files of the model that the upstreams run, where a copy of them was named. Raises StartupError."""
    if settings.model.path is None:
        return None
    files = await asyncio.to_thread(resolve_model, settings.model.path)
    say(f"media are priced as {files.name} does ({files.family})")
    return files


async def _load(
    settings: Settings, files: ModelFiles | None, media: MediaPool, relay: UpstreamRelay, scope: AsyncExitStack
) -> PromptSide:
    """Start the workers, look at the upstreams and load the prices, all at once. The first failure ends the others."""
    scope.push_async_callback(media.stop, seconds_max=1.0)
    scope.push_async_callback(relay.stop)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(media.start())
            tasks.create_task(relay.start())
            priced = None
            if files is not None:
                priced = tasks.create_task(asyncio.to_thread(load_prompt_side, files, appearance(settings)))
    except* StartupError as group:
        raise group.exceptions[0] from None
    return UnknownModel() if priced is None else priced.result()
