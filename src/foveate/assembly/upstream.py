"""A server whose engines are other servers: the same door, no model of its own. With ``--model`` it knows the prices of media exactly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from foveate.assembly import bounds, gauges, rules
from foveate.assembly.checks import check
from foveate.assembly.runtime import runtime_of
from foveate.assembly.supply import Shared
from foveate.assembly.version import Say, appearance, load_version, pool_config
from foveate.caches.aliases import Aliases
from foveate.caches.bad_media import BadMedia
from foveate.caches.keys import EncoderKey
from foveate.caches.single_flight import SingleFlight
from foveate.core.errors import StartupError
from foveate.engines.upstream.absent import NoEngine
from foveate.engines.upstream.relay import UpstreamRelay
from foveate.engines.upstream.store import NAMED_FAMILIES
from foveate.journey.check_upstreams import UpstreamCheck
from foveate.journey.job import Got, Made, Wanted
from foveate.journey.reload import Reloads
from foveate.journey.roll_out import RollOut
from foveate.journey.service import Journey
from foveate.journey.serving import Serving
from foveate.journey.text import TextWork
from foveate.journey.tools import Tools
from foveate.media.pool import MediaPool
from foveate.models.files import ModelFiles, resolve_model
from foveate.models.loading import load_prompt_side
from foveate.models.port import PromptSide
from foveate.models.preload import preload_modules
from foveate.models.unknown import UnknownModel
from foveate.observe.load import Load
from foveate.observe.metrics import Metrics
from foveate.runtime.arena import Arena
from foveate.runtime.port import Runtime
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
        load = Load(metrics)
        reloads = Reloads(checked.reading, lambda: check(read() if read is not None else settings).reading, metrics)
        fetcher = rules.fetcher(settings, scope, name_servers=checked.name_servers, proxy=checked.proxy)
        request_log = gauges.request_log(settings, scope)
        arena = bounds.arena(settings)
        relay = UpstreamRelay(checked.relay, arena, say=say)
        scope.push_async_callback(relay.stop)
        files = await (find_needed(settings, say) if relay.takes_embeddings else _find(settings, say))
        if settings.upstream.store is not None and files is not None and files.family not in NAMED_FAMILIES:
            raise StartupError(
                f"vLLM takes no embeddings by name for the family {files.family}, but for: {', '.join(sorted(NAMED_FAMILIES))}. "
                "Leave upstream.store out."
            )
        runtime = await runtime_for(settings, files if relay.takes_embeddings else None, arena)
        scope.push_async_callback(runtime.close)
        fetches: SingleFlight[Wanted, Got] = SingleFlight(Got.release)
        flights: SingleFlight[EncoderKey, Made] = SingleFlight(Made.release)
        scope.push_async_callback(fetches.aclose)
        scope.push_async_callback(flights.aclose)
        serving = await load_serving(settings, files, relay, runtime, say=say, load=load)
        scope.push_async_callback(serving.stop)
        if relay.takes_embeddings:
            await UpstreamCheck(serving, relay, arena).start()
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
        lag = await gauges.loop_lag(settings, metrics, scope)
        gauges.bind(metrics, tools, lag, request_log)
        gauges.bind_load(metrics, load, runtime, None)
        yield Journey(tools, models=())


async def find_needed(settings: Settings, say: Say) -> ModelFiles:
    """Find the files of the model that the upstreams run and that encodes for them. Raises StartupError where none was named."""
    files = await _find(settings, say, what="encoded")
    if files is None:
        raise StartupError("To send upstreams embeddings, name the model that they run: --model DIR_OR_HUB_ID.")
    return files


async def _find(settings: Settings, say: Say, *, what: str = "priced") -> ModelFiles | None:
    if settings.model.path is None:
        return None
    files = await asyncio.to_thread(resolve_model, settings.model.path)
    say(f"media are {what} as {files.name} does ({files.family})")
    return files


async def runtime_for(settings: Settings, files: ModelFiles | None, arena: Arena) -> Runtime:
    """Return the runtime; ``files`` of a model that workers are to run, None: they need none."""
    if files is None:
        return await runtime_of(settings, arena, model_modules=(), modules=WORKER_MODULES)
    model_modules = await asyncio.to_thread(preload_modules, files.family)
    modules = (*WORKER_MODULES, "foveate.engines.embedded.process")
    return await runtime_of(settings, arena, model_modules=model_modules, modules=modules)


async def load_serving(
    settings: Settings, files: ModelFiles | None, relay: UpstreamRelay, runtime: Runtime, *, say: Say, load: Load
) -> Serving:
    """Look at the upstreams while all that is needed here starts. The first failure ends the others. Raises StartupError."""
    encodes = files is not None and relay.takes_embeddings
    shared = Shared(settings, runtime, load, say)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(relay.start())
            here = tasks.create_task(
                load_version(files, files.name, settings, shared, number=0)
                if files is not None and encodes
                else _without_engine(settings, files, relay, runtime, load)
            )
    except* StartupError as group:
        raise group.exceptions[0] from None
    return here.result()


async def _without_engine(
    settings: Settings, files: ModelFiles | None, relay: UpstreamRelay, runtime: Runtime, load: Load
) -> Serving:
    """Start media workers, which need no model as no picture is processed here, and load the prices where they are known."""
    media = MediaPool(runtime, pool_config(settings, ModelFiles("", "", "unknown"), 0), load)
    engine = NoEngine(relay)
    loading: list[TextWork] = []

    async def stop() -> None:
        for text in loading:
            text.close()
        await media.stop(seconds_max=1.0)

    try:
        await media.start()
        prompt_side: PromptSide = UnknownModel()
        if files is not None:
            prompt_side = await asyncio.to_thread(load_prompt_side, files, appearance(settings))
    except BaseException:
        await stop()
        raise
    loading.append(text := TextWork(prompt_side))
    name = files.name if files is not None else ""
    return Serving(name, prompt_side, text, media, engine, engine, restarts=lambda: engine.restarts, stop=stop)
