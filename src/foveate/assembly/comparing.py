"""What ``foveate check --embeddings`` compares: the same parts that a server would serve with, started for one picture and ended."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from foveate.assembly import bounds
from foveate.assembly.checks import check
from foveate.assembly.engines import spare_cores, worker_modules
from foveate.assembly.runtime import runtime_of
from foveate.assembly.supply import Shared
from foveate.assembly.upstream import find_needed, load_serving, runtime_for
from foveate.assembly.version import Say, find_model, load_version
from foveate.core.errors import StartupError
from foveate.decisions.agreement import Comparison
from foveate.encoders.reference_port import ReferenceConfig, ReferenceProcess
from foveate.engines.upstream.relay import UpstreamRelay
from foveate.journey.check_upstreams import UpstreamCheck
from foveate.journey.self_check import TOKENS, compare
from foveate.models.preload import preload_modules
from foveate.observe.load import Load
from foveate.observe.metrics import Metrics
from foveate.settings import Settings


async def compare_embeddings(settings: Settings, *, say: Say) -> list[Comparison]:
    """Return what was found, one entry for each engine or upstream; none where pictures do not go on as embeddings.

    Raises StartupError where nothing can be compared.
    """
    return await (_upstreams(settings, say) if settings.engine.kind == "upstream" else _engine(settings, say))


async def _engine(settings: Settings, say: Say) -> list[Comparison]:
    """Compare with transformers' own answer, for which the whole model is loaded once more."""
    if settings.model.encoder:
        raise StartupError(
            "There is nothing to compare the embeddings of an encoder of one's own with: leave out --encoder to check the checkpoint's."
        )
    # What a server checks when it starts is what is to be reported here.
    settings = settings.model_copy(update={"engine": settings.engine.model_copy(update={"self_check": False})})
    async with AsyncExitStack() as scope:
        check(settings)
        files, name = await find_model(settings.model.path, settings, say)
        modules = await asyncio.to_thread(preload_modules, files.family)
        arena = bounds.arena(settings)
        runtime = await runtime_of(settings, arena, model_modules=modules, modules=worker_modules(settings))
        scope.push_async_callback(runtime.close)
        shared = Shared(settings, runtime, Load(Metrics()), say)
        serving = await load_version(files, name, settings, shared, number=0)
        scope.push_async_callback(serving.stop)
        if "embeddings" not in serving.engine.accepts:
            return []
        say("transformers answers about the same picture")
        reference = ReferenceProcess(
            runtime,
            ReferenceConfig(files.directory, tokens=TOKENS),
            index=0,
            threads=settings.engine.threads or spare_cores(),
        )
        scope.push_async_callback(reference.stop)
        await reference.start(seconds_max=settings.server.start_seconds_max)
        return [await compare(serving, reference, runtime.arena)]


async def _upstreams(settings: Settings, say: Say) -> list[Comparison]:
    """Compare every upstream that is up, by pixels and by embeddings."""
    async with AsyncExitStack() as scope:
        checked = check(settings)
        assert checked.relay is not None, "checked for --engine upstream"
        arena = bounds.arena(settings)
        relay = UpstreamRelay(checked.relay, arena, say=say)
        scope.push_async_callback(relay.stop)
        if not relay.takes_embeddings:
            return []
        files = await find_needed(settings, say)
        runtime = await runtime_for(settings, files, arena)
        scope.push_async_callback(runtime.close)
        serving = await load_serving(settings, files, relay, runtime, say=say, load=Load(Metrics()))
        scope.push_async_callback(serving.stop)
        comparing = UpstreamCheck(serving, relay, arena)
        return [
            await comparing.compare(server.name, server.models[0])
            if server.healthy and server.models
            else Comparison(what=server.name, reason=f"it is not up: {server.error or 'it has no model'}")
            for server in relay.report()
        ]
