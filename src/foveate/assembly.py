"""The only wiring: settings in, a running server out. No other module constructs a collaborator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from foveate import __version__
from foveate.caches.aliases import Aliases
from foveate.caches.bad_media import BadMedia
from foveate.caches.encoder import EncoderCache
from foveate.caches.keys import EncoderKey
from foveate.caches.processor import ProcessorCache
from foveate.caches.single_flight import SingleFlight
from foveate.core.clock import wall
from foveate.core.errors import StartupError
from foveate.core.media import Appearance
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.journey.in_flight import QUANTITIES, InFlight
from foveate.journey.job import Got, Made, Wanted
from foveate.journey.key_ring import KeyRing
from foveate.journey.places import Places
from foveate.journey.port import UrlTerms
from foveate.journey.reload import Reading, Reloads
from foveate.journey.rules import Rules
from foveate.journey.service import Journey
from foveate.journey.text import TextWork
from foveate.journey.tools import Limits, Tools
from foveate.journey.warm import warm
from foveate.media.fetch import Fetcher, FetchLimits
from foveate.media.messages import WorkerConfig
from foveate.media.policy import UrlPolicy
from foveate.media.pool import MediaPool, PoolConfig
from foveate.media.probe import Accepted
from foveate.media.proxy import Proxy
from foveate.media.resolve import ServerResolver, parse_servers
from foveate.models.loading import ModelFiles, load_prompt_side, resolve_model
from foveate.models.memory import check_memory
from foveate.models.port import PromptSide
from foveate.models.preload import preload_modules
from foveate.observe.logging import get_logger
from foveate.observe.loop_lag import LoopLag
from foveate.observe.metrics import Metrics
from foveate.observe.observer import Observer
from foveate.observe.request_log import RequestLog
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime
from foveate.settings import CacheSettings, LogSettings, Settings, budgets, flat, read_keys, restart_keys

WORKER_MODULES = ("foveate.media.worker", "foveate.engines.embedded.process")
"""Imported by the forkserver once, beside the model's, so that a worker that died is replaced in milliseconds."""

MEDIA_WORKERS_MAX = 8
Say = Callable[[str], None]
log = get_logger(__name__)


@asynccontextmanager
async def journey(
    settings: Settings, *, say: Say, read: Callable[[], Settings] | None = None
) -> AsyncIterator[Journey]:
    """Build everything behind the API, ready to answer; leaving ends every worker. Raises StartupError.

    ``read`` reads the settings again for a reload; without it a reload finds them unchanged (but for the keys file).
    """
    async with AsyncExitStack() as scope:
        # What the settings alone can tell is told before anything is loaded.
        arena_bytes = _arena_bytes(settings)
        metrics = Metrics()
        reloads = Reloads(reading(settings), lambda: reading(read() if read is not None else settings), metrics)
        fetcher = _fetcher(settings, scope)
        request_log = _request_log(settings.log, scope)
        files, name = await _model(settings, say)
        arena = _arena(arena_bytes)
        modules = await asyncio.to_thread(preload_modules, files.family)
        runtime = LocalRuntime(arena, preload=(*modules, *WORKER_MODULES))
        scope.push_async_callback(runtime.close)
        media = MediaPool(runtime, _pool_config(settings, files))
        engine = _engine(settings, files, name, runtime, say)
        # Closed after the workers have ended: shared work waits for a worker to let go of its slots, even for one that hangs.
        fetches: SingleFlight[Wanted, Got] = SingleFlight(Got.release)
        flights: SingleFlight[EncoderKey, Made] = SingleFlight(Made.release)
        scope.push_async_callback(fetches.aclose)
        scope.push_async_callback(flights.aclose)
        prompt_side = await _load(partial(load_prompt_side, files, _appearance(settings)), media, engine, scope)
        text = TextWork(prompt_side)
        scope.callback(text.close)
        tools = Tools(
            limits=_limits(settings),
            arena=arena,
            prompt_side=prompt_side,
            text=text,
            rules=reloads.live,
            reloads=reloads,
            fetcher=fetcher,
            media=media,
            encoder=engine,
            engine=engine,
            processor_cache=_processor_cache(settings.cache, arena),
            encoder_cache=_encoder_cache(settings.cache, arena),
            bad_media=BadMedia(settings.cache.bad_media_seconds),
            aliases=Aliases(settings.cache.aliases_max),
            fetches=fetches,
            flights=flights,
            observer=Observer(metrics, request_log),
            metrics=metrics,
            multimodal_places=_places(settings),
            in_flight=_in_flight(settings),
        )
        lag = await scope.enter_async_context(_lag(metrics))
        _bind(metrics, tools, engine, lag, request_log)
        await warm(tools)
        yield Journey(tools, models=(name,))


def _lag(metrics: Metrics) -> LoopLag:
    return LoopLag(lambda seconds: metrics.observe("foveate_event_loop_lag_seconds", value=seconds))


async def _model(settings: Settings, say: Say) -> tuple[ModelFiles, str]:
    """Find the model and its name. Raises StartupError when there is none, or this machine's memory cannot hold it."""
    files = await asyncio.to_thread(resolve_model, settings.model.path)
    name = served_name(settings, files)
    say(f"loading {name} ({files.family}); importing its libraries takes some seconds")
    if settings.model.device == "cpu":
        check_memory(files.directory, name, dtype=settings.model.dtype)
    return files, name


def _arena_bytes(settings: Settings) -> int:
    """Return the arena's size. Raises StartupError when the caches and one largest body would not fit beside each other."""
    caches = settings.cache.processor_bytes_max + settings.cache.encoder_bytes_max
    needed = caches + 2 * settings.server.body_bytes_max
    if settings.limits.arena_bytes_max < needed:
        raise StartupError(
            f"limits.arena_bytes_max is {settings.limits.arena_bytes_max}, but the two caches ({caches} bytes) and twice the largest "
            f"body need {needed}. Raise it, or lower cache.processor_bytes_max, cache.encoder_bytes_max or server.body_bytes_max."
        )
    return settings.limits.arena_bytes_max


def _arena(size: int) -> Arena:
    try:
        return Arena(size)
    except (OSError, OverflowError) as error:
        raise StartupError(
            f"An arena of {size} bytes cannot be mapped on this machine. Lower limits.arena_bytes_max (--limits-arena-bytes-max)."
        ) from error


def _processor_cache(cache: CacheSettings, arena: Arena) -> ProcessorCache:
    return ProcessorCache(
        cache.processor_bytes_max, arena.release, policy=cache.processor_policy, curve_rate=cache.curve_sample_rate
    )


def _encoder_cache(cache: CacheSettings, arena: Arena) -> EncoderCache:
    return EncoderCache(
        cache.encoder_bytes_max, arena.release, policy=cache.encoder_policy, curve_rate=cache.curve_sample_rate
    )


def served_name(settings: Settings, files: ModelFiles) -> str:
    """Return the name clients use: the one that was set, else the hub id, else the directory's last part."""
    return settings.model.served_name or (Path(files.name).name if Path(files.name).is_dir() else files.name)


async def _load(
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


def _engine(settings: Settings, files: ModelFiles, name: str, runtime: LocalRuntime, say: Say) -> EmbeddedEngine:
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


def _pool_config(settings: Settings, files: ModelFiles) -> PoolConfig:
    media = settings.media
    return PoolConfig(
        workers=media.workers or min(_spare_cores(), MEDIA_WORKERS_MAX),
        config=WorkerConfig(files.directory, _appearance(settings), media.decode_pixels_max),
        queue_depth_max=media.queue_depth_max,
        job_seconds_max=media.job_seconds_max,
        memory_bytes_max=media.worker_memory_bytes_max,
        start_seconds_max=settings.server.start_seconds_max,
    )


def _appearance(settings: Settings) -> Appearance:
    media = settings.media
    red, green, blue = bytes.fromhex(media.background.removeprefix("#"))
    return Appearance((red, green, blue), media.icc_to_srgb, media.truncated_accepted)


def reading(settings: Settings) -> Reading:
    """Make the rules. Raises StartupError."""
    tiers = budgets(settings.multimodal_budget)
    values, restart = flat(settings), restart_keys()
    fetch = settings.fetch
    policy = _policy(settings)
    schemes = ("https", *(("http",) if fetch.http_allowed else ()), "data", *(("file",) if fetch.file_root else ()))
    rules = Rules(
        tiers=tiers,
        keys=KeyRing(read_keys(settings.auth, tiers)),
        policy=policy,
        urls=UrlTerms(schemes, tuple(sorted(policy.ports)), fetch.only_hosts or None),
        fetch={key: value for key, value in values.items() if key.startswith("fetch.") and key not in restart},
        read_at=wall(),
    )
    return Reading(rules, values, restart)


def _policy(settings: Settings) -> UrlPolicy:
    fetch = settings.fetch
    return UrlPolicy.of(
        http_allowed=fetch.http_allowed,
        private_networks=fetch.private_networks,
        hosts=fetch.hosts,
        only_hosts=fetch.only_hosts,
        ports=fetch.ports,
        file_root=fetch.file_root,
    )


def _fetch_limits(settings: Settings) -> FetchLimits:
    fetch = settings.fetch
    return FetchLimits(
        total_seconds_max=fetch.total_seconds,
        dns_seconds_max=fetch.dns_seconds,
        connect_seconds_max=fetch.connect_seconds,
        first_byte_seconds_max=fetch.first_byte_seconds,
        read_seconds_max=fetch.read_seconds,
        transfers_max=fetch.concurrency_max,
        transfers_per_host_max=fetch.per_host_max,
        transfers_per_tenant_max=fetch.per_tenant_max or max(fetch.concurrency_max - fetch.concurrency_max // 4, 1),
        waiting_max=fetch.waiting_max,
        dead_host_failures=fetch.dead_host_failures,
        dead_host_seconds=fetch.dead_host_seconds,
    )


def _fetcher(settings: Settings, scope: AsyncExitStack) -> Fetcher:
    """Raises StartupError when the proxy or a name server is not written as one."""
    fetch = settings.fetch
    fetcher = Fetcher(
        user_agent=_user_agent(settings),
        limits=_fetch_limits(settings),
        resolver=ServerResolver(parse_servers(fetch.dns_servers)) if fetch.dns_servers else None,
        proxy=Proxy.of(fetch.proxy) if fetch.proxy else None,
    )
    scope.push_async_callback(fetcher.aclose)
    return fetcher


def _user_agent(settings: Settings) -> str:
    return settings.fetch.user_agent.replace("{version}", __version__)


def _limits(settings: Settings) -> Limits:
    return Limits(
        body_bytes_max=settings.server.body_bytes_max,
        inline_bytes_min=settings.server.inline_bytes_min,
        request_seconds_max=settings.server.request_seconds_max,
        item_seconds_max=settings.server.request_seconds_max,
        answer_tokens_default=settings.limits.answer_tokens_default,
        pictures=Accepted(settings.media.formats, settings.media.animation_frames_max),
        decode_pixels_max=settings.media.decode_pixels_max,
        caches_per_tenant=settings.cache.scope == "per_tenant",
    )


def _places(settings: Settings) -> Places:
    limits = settings.limits
    return Places(limits.multimodal_requests_max, waiting_max=limits.multimodal_waiting_max)


def _in_flight(settings: Settings) -> InFlight:
    limits = settings.limits
    return InFlight(
        bytes_max=limits.media_bytes_in_flight_max,
        pixels_max=limits.pixels_in_flight_max,
        visual_tokens_max=limits.visual_tokens_in_flight_max,
    )


def _request_log(settings: LogSettings, scope: AsyncExitStack) -> RequestLog | None:
    if settings.requests == "off":
        return None
    request_log = RequestLog(None if settings.requests == "stdout" else Path(settings.requests))
    try:
        request_log.start()
    except OSError as error:
        raise StartupError(
            f"The request log {settings.requests!r} cannot be opened: {error.strerror}. Set log.requests to a writable file."
        ) from error
    scope.push_async_callback(partial(asyncio.to_thread, request_log.close))
    return request_log


def _bind(metrics: Metrics, tools: Tools, engine: EmbeddedEngine, lag: LoopLag, request_log: RequestLog | None) -> None:
    """Tie the metrics that are read at scrape time to their owners."""
    media, arena = tools.media, tools.arena
    metrics.bind_cache("processor", tools.processor_cache.stats)
    metrics.bind_cache("encoder", tools.encoder_cache.stats)
    observer, bad_media = tools.observer, tools.bad_media
    metrics.bind("foveate_bad_media_refusals_total", lambda: bad_media.refusals)
    metrics.bind("foveate_kv_prefix_requests_total", lambda: observer.kv_prefix.requests)
    metrics.bind("foveate_kv_prefix_hits_total", lambda: observer.kv_prefix.hits)
    metrics.bind("foveate_kv_prefix_prompt_tokens_total", lambda: observer.kv_prefix.prompt_tokens)
    metrics.bind("foveate_kv_prefix_cached_tokens_total", lambda: observer.kv_prefix.cached_tokens)
    metrics.bind("foveate_aliases", lambda: len(tools.aliases))
    metrics.bind("foveate_media_workers", lambda: media.alive)
    metrics.bind("foveate_media_workers_busy", lambda: media.busy)
    metrics.bind("foveate_media_queue_length", lambda: media.waiting)
    metrics.bind("foveate_media_worker_restarts_total", lambda: media.restarts)
    metrics.bind("foveate_engine_ready", lambda: engine.ready)
    metrics.bind("foveate_engine_restarts_total", lambda: engine.restarts)
    metrics.bind("foveate_arena_used_bytes", lambda: arena.used_bytes)
    metrics.bind("foveate_arena_capacity_bytes", lambda: arena.capacity_bytes)
    metrics.bind("foveate_admission_waiting", lambda: tools.multimodal_places.waiting)
    metrics.bind("foveate_admission_places_taken", lambda: tools.multimodal_places.taken)
    _bind_in_flight(metrics, tools.in_flight)
    metrics.bind("foveate_event_loop_lag_p99_seconds", lag.p99)
    metrics.bind("foveate_request_log_dropped_total", lambda: request_log.dropped if request_log else 0)
    assert not metrics.unbound(), f"nobody answers for {metrics.unbound()}"


def _bind_in_flight(metrics: Metrics, accounts: InFlight) -> None:
    metrics.bind("foveate_in_flight_requests", lambda: accounts.requests)
    metrics.bind("foveate_in_flight_tenants", lambda: accounts.tenants)
    for quantity in QUANTITIES:
        name = "media_bytes" if quantity == "bytes" else quantity
        metrics.bind(f"foveate_in_flight_{name}", partial(accounts.used, quantity))
        metrics.bind(f"foveate_in_flight_{name}_capacity", partial(accounts.capacity.__getitem__, quantity))


def _spare_cores() -> int:
    """Cores that workers may fill by default. One is left to the gateway, which needs little, but at once."""
    return max(1, len(os.sched_getaffinity(0)) - 1)
