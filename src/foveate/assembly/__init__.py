"""The only wiring: settings in, a running server out. No other package constructs a collaborator.

:func:`journey` builds the whole; each module beside it turns some of the settings into parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from foveate.assembly import bounds, gauges, rules
from foveate.assembly.checks import check
from foveate.assembly.encoders import crowded, idle, scale_terms
from foveate.assembly.engines import worker_modules
from foveate.assembly.keep import keep_directory
from foveate.assembly.runtime import runtime_of
from foveate.assembly.supply import Shared
from foveate.assembly.version import Say, another_version, find_model, load_version
from foveate.caches.aliases import Aliases
from foveate.caches.bad_media import BadMedia
from foveate.caches.keys import EncoderKey
from foveate.caches.single_flight import SingleFlight
from foveate.journey.canary import Canaries
from foveate.journey.job import Got, Made, Wanted
from foveate.journey.keep import restore, save
from foveate.journey.partings import Partings
from foveate.journey.reload import Reloads
from foveate.journey.roll_out import RollOut
from foveate.journey.service import Journey
from foveate.journey.tools import Tools
from foveate.models.files import ModelFiles
from foveate.models.preload import preload_modules
from foveate.observe.load import Load
from foveate.observe.logging import get_logger
from foveate.observe.metrics import Metrics
from foveate.runtime.port import Runtime
from foveate.settings import Settings

__all__ = ["check", "journey"]

log = get_logger(__name__)


@asynccontextmanager
async def journey(
    settings: Settings, *, say: Say, read: Callable[[], Settings] | None = None
) -> AsyncIterator[Journey]:
    """Build everything behind the API, ready to answer; leaving ends every worker. Raises StartupError.

    ``read`` reads the settings again for a reload; without it a reload finds them unchanged (but for the keys file).
    """
    async with AsyncExitStack() as scope:
        checked = check(settings)  # what the settings alone can tell is told before anything is loaded
        for each in (*idle(settings), *crowded(settings)):
            log.warning(each)
        metrics = Metrics()
        load = Load(metrics)
        reloads = Reloads(checked.reading, lambda: check(read() if read is not None else settings).reading, metrics)
        keep = keep_directory(settings, scope)
        fetcher = rules.fetcher(settings, scope, name_servers=checked.name_servers, proxy=checked.proxy)
        request_log = gauges.request_log(settings, scope)
        files, name = await find_model(settings.model.path, settings, say)
        runtime = await _runtime(settings, files, scope)
        arena = runtime.arena
        fetches, flights, partings = _outliving_requests(scope)
        shared = Shared(settings, runtime, load, say)
        roll_out = RollOut(await load_version(files, name, settings, shared, number=0))
        scope.push_async_callback(roll_out.aclose)
        tools = Tools(
            limits=bounds.limits(settings),
            arena=arena,
            roll_out=roll_out,
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
            partings=partings,
            observer=gauges.observer(settings, metrics, request_log, scope),
            metrics=metrics,
            multimodal_places=bounds.places(settings),
            in_flight=bounds.in_flight(settings),
            keep=keep,
        )
        gauges.bind(metrics, tools, await gauges.loop_lag(settings, metrics, scope), request_log)
        gauges.bind_load(metrics, load, runtime, shared.room)
        await restore(tools)
        scope.push_async_callback(save, tools)
        another = another_version(settings, shared, now=lambda: roll_out.stable)
        canaries = Canaries(tools, bounds.canary_terms(settings, another))
        scope.push_async_callback(canaries.aclose)
        built = Journey(
            tools, models=(name,), canaries=canaries, scale=scale_terms(settings), encoders=settings.topology.encoders
        )
        scope.push_async_callback(built.aclose)
        yield built


def _outliving_requests(
    scope: AsyncExitStack,
) -> tuple[SingleFlight[Wanted, Got], SingleFlight[EncoderKey, Made], Partings]:
    """Return what owns work that no single request does. Entered into ``scope`` before the workers, so that it is closed after they have
    ended: such work waits for a worker to let go of its slots, even for one that hangs.
    """
    fetches: SingleFlight[Wanted, Got] = SingleFlight(Got.release)
    flights: SingleFlight[EncoderKey, Made] = SingleFlight(Made.release)
    partings = Partings()
    for each in (fetches, flights, partings):
        scope.push_async_callback(each.aclose)
    return fetches, flights, partings


async def _runtime(settings: Settings, files: ModelFiles, scope: AsyncExitStack) -> Runtime:
    """Return where workers run, closed with ``scope``. Raises StartupError."""
    modules = await asyncio.to_thread(preload_modules, files.family)
    runtime = await runtime_of(
        settings, bounds.arena(settings), model_modules=modules, modules=worker_modules(settings)
    )
    scope.push_async_callback(runtime.close)
    return runtime
