"""Who answers for the metrics that are read at scrape time, and the request log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from foveate import __version__
from foveate.caches.media import MediaCache, MediaCounts
from foveate.core.errors import StartupError
from foveate.core.stages import Modality
from foveate.decisions.canary import Differences
from foveate.decisions.objectives import Targets
from foveate.encoders.pool import EncoderPool
from foveate.encoders.seat import EncoderReport, State
from foveate.engines.embedded.kv_room import KvRoom
from foveate.engines.port import EngineReport, Relay, RelayReport
from foveate.journey.in_flight import InFlight
from foveate.journey.in_flight_limits import QUANTITIES
from foveate.journey.roll_out import RollOut
from foveate.journey.tools import Tools
from foveate.observe.cost import CostBook, Prices
from foveate.observe.gpu import Gpu, Gpus
from foveate.observe.load import Load
from foveate.observe.loop_lag import LoopLag
from foveate.observe.metrics import Metrics, Reading
from foveate.observe.observer import Observer, TraceSink
from foveate.observe.processes import resident_bytes
from foveate.observe.request_log import RequestLog
from foveate.runtime.port import Runtime
from foveate.settings import Settings, TraceSettings


async def loop_lag(settings: Settings, metrics: Metrics, scope: AsyncExitStack) -> LoopLag:
    """Return the probe of the event loop, running where requests are observed."""
    made = LoopLag(lambda seconds: metrics.observe("foveate_event_loop_lag_seconds", value=seconds))
    return await scope.enter_async_context(made) if settings.observe.requests == "on" else made


def bind(
    metrics: Metrics,
    tools: Tools,
    lag: LoopLag,
    request_log: RequestLog | None,
) -> None:
    """Tie the metrics that are read at scrape time to their owners."""
    arena, roll_out = tools.arena, tools.roll_out
    metrics.bind_cache("processor", tools.processor_cache.stats)
    metrics.bind_cache("encoder", tools.encoder_cache.stats)
    _bind_media_cache(metrics, tools.media_cache)
    observer, bad_media = tools.observer, tools.bad_media
    metrics.bind("foveate_bad_media_refusals_total", lambda: bad_media.refusals)
    metrics.bind("foveate_kv_prefix_requests_total", lambda: observer.kv_prefix.requests)
    metrics.bind("foveate_kv_prefix_hits_total", lambda: observer.kv_prefix.hits)
    metrics.bind("foveate_kv_prefix_prompt_tokens_total", lambda: observer.kv_prefix.prompt_tokens)
    metrics.bind("foveate_kv_prefix_cached_tokens_total", lambda: observer.kv_prefix.cached_tokens)
    metrics.bind("foveate_aliases", lambda: len(tools.aliases))
    metrics.bind("foveate_media_workers", lambda: sum(serving.media.alive for serving in roll_out.all))
    metrics.bind("foveate_media_workers_busy", lambda: sum(serving.media.busy for serving in roll_out.all))
    metrics.bind("foveate_media_queue_length", lambda: sum(serving.media.waiting for serving in roll_out.all))
    metrics.bind("foveate_media_worker_restarts_total", lambda: roll_out.media_restarts)
    _bind_engines(metrics, roll_out)
    _bind_encoders(metrics, roll_out)
    _bind_canary(metrics, roll_out)
    metrics.bind("foveate_arena_used_bytes", lambda: arena.used_bytes)
    metrics.bind("foveate_arena_capacity_bytes", lambda: arena.capacity_bytes)
    metrics.bind("foveate_admission_waiting", lambda: tools.multimodal_places.waiting)
    metrics.bind("foveate_admission_places_taken", lambda: tools.multimodal_places.taken)
    _bind_in_flight(metrics, tools.in_flight)
    objectives = observer.objectives
    metrics.bind("foveate_slo_attainment", lambda: objectives.gauge(lambda window: window.attainment))
    metrics.bind("foveate_slo_burn_rate", lambda: objectives.gauge(lambda window: window.burn_rate))
    metrics.bind("foveate_slo_goodput_per_second", lambda: objectives.gauge(lambda window: window.goodput))
    metrics.bind("foveate_event_loop_lag_p99_seconds", lag.p99)
    metrics.bind("foveate_traces_dropped_total", lambda: observer.traces.dropped if observer.traces else 0)
    metrics.bind("foveate_request_log_dropped_total", lambda: request_log.dropped if request_log else 0)
    _bind_upstreams(metrics, tools.relay)


def bind_load(metrics: Metrics, load: Load, runtime: Runtime, room: KvRoom | None) -> None:
    """Tie the gauges of queues, memory and GPUs to those who know. ``room`` is None where no prompt is handed on."""
    gpus = Gpus()
    metrics.bind("foveate_encoder_queue_length", lambda: load.encoder_waiting)
    metrics.bind("foveate_encoders_busy", load.encoders_busy)
    metrics.bind("foveate_llm_waiting", lambda: load.llm_waiting)
    metrics.bind("foveate_llm_running", lambda: load.llm_running)
    metrics.bind("foveate_kv_room_used_bytes", lambda: room.used_bytes if room else 0)
    metrics.bind("foveate_kv_room_waiting", lambda: room.waiting if room else 0)
    metrics.bind("foveate_process_resident_bytes", lambda: resident_bytes(runtime.processes()))

    def bind_gpu(name: str, read: Callable[[Gpu], float]) -> None:
        metrics.bind(
            f"foveate_gpu_{name}", lambda: {gpu: read(one) for gpu, one in gpus.read().items()}, waits=gpus.present
        )

    bind_gpu("utilisation", lambda one: one.utilisation)
    bind_gpu("memory_used_bytes", lambda one: one.memory_used_bytes)
    bind_gpu("memory_bytes", lambda one: one.memory_bytes)
    assert not metrics.unbound(), f"nobody answers for {metrics.unbound()}"


def _bind_engines(metrics: Metrics, roll_out: RollOut) -> None:
    def bind(name: str, read: Callable[[EngineReport], float]) -> None:
        metrics.bind(f"foveate_engine_{name}", lambda: {one.name: read(one) for one in roll_out.stable.engine.report()})

    bind("ready", lambda one: one.usable)
    bind("draining", lambda one: one.draining)
    bind("in_flight", lambda one: one.in_flight)
    bind("outstanding_tokens", lambda one: one.outstanding_tokens)
    metrics.bind("foveate_engine_restarts_total", lambda: roll_out.engine_restarts)


def _bind_media_cache(metrics: Metrics, cache: MediaCache) -> None:
    metrics.bind_cache("media", cache.stats)
    metrics.bind("foveate_media_cache_revalidations_total", lambda: _revalidations(cache.counts()))
    metrics.bind("foveate_media_cache_not_kept_total", lambda: _not_kept(cache.counts()))


def _revalidations(counts: MediaCounts) -> dict[str, float]:
    return {"unchanged": counts.unchanged, "changed": counts.changed}


def _not_kept(counts: MediaCounts) -> dict[str, float]:
    return {str(reason): float(number) for reason, number in counts.not_kept.items()}


def _bind_canary(metrics: Metrics, roll_out: RollOut) -> None:
    def of_differences(name: str, read: Callable[[Differences], float | None]) -> None:
        """A figure that does not exist has no sample: 0 would be read as one."""

        def reading() -> Reading:
            trial = roll_out.trial
            found = None if trial is None else read(trial.evidence().differences)
            return {} if found is None else found

        metrics.bind(f"foveate_canary_{name}", reading)

    metrics.bind("foveate_canary_share", lambda: 0.0 if (trial := roll_out.trial) is None else trial.share)
    metrics.bind("foveate_canary_versions", lambda: len(roll_out.all))
    of_differences("cosine_mean", lambda found: found.cosine_mean)
    of_differences("cosine_min", lambda found: found.cosine_min)
    of_differences("relative_norm_mean", lambda found: found.norm_ratio_mean)


_BREAKER: dict[State, float] = {"up": 0, "draining": 0, "recovering": 1, "down": 2}


def _bind_encoders(metrics: Metrics, roll_out: RollOut) -> None:
    """When aggregated there is no series but those that have no worker's name."""

    def pools() -> list[EncoderPool]:
        return [serving.encoders for serving in roll_out.all if serving.encoders is not None]

    def bind(name: str, read: Callable[[EncoderReport], float]) -> None:
        metrics.bind(
            f"foveate_encoder_worker_{name}",
            lambda: {str(one.worker): read(one) for pool in pools() for one in pool.report()},
        )

    bind("breaker", lambda one: _BREAKER[one.state])
    bind("draining", lambda one: one.state == "draining")
    bind("waiting", lambda one: one.waiting)
    bind("held", lambda one: one.held)
    bind("batches_total", lambda one: one.batches)
    bind("pictures_total", lambda one: one.pictures)
    bind("busy_seconds_total", lambda one: one.busy_seconds)
    bind("restarts_total", lambda one: one.restarts)
    metrics.bind("foveate_encoder_workers", lambda: sum(pool.alive for pool in pools()))
    metrics.bind("foveate_encoder_workers_wanted", lambda: sum(pool.wanted for pool in pools()))
    metrics.bind("foveate_encoder_local_pictures_total", lambda: roll_out.local_pictures)


def _bind_upstreams(metrics: Metrics, relay: Relay | None) -> None:
    """Without a relay there is no series but the one that has no upstream's name."""

    def bind(name: str, read: Callable[[RelayReport], float]) -> None:
        metrics.bind(
            f"foveate_upstream_{name}", lambda: {one.name: read(one) for one in (relay.report() if relay else ())}
        )

    def ended() -> dict[tuple[str, ...], float]:
        reports = relay.report() if relay else ()
        return {(one.name, outcome): number for one in reports for outcome, number in one.ended.items()}

    bind("up", lambda one: one.up)
    bind("draining", lambda one: one.draining)
    bind("share", lambda one: one.share)
    bind("in_flight", lambda one: one.in_flight)
    bind("outstanding_tokens", lambda one: one.outstanding_tokens)
    bind("resent_total", lambda one: one.resent)
    metrics.bind("foveate_upstream_requests_total", ended)
    metrics.bind("foveate_upstream_waiting", lambda: relay.waiting if relay else 0)


def _bind_in_flight(metrics: Metrics, accounts: InFlight) -> None:
    metrics.bind("foveate_in_flight_requests", lambda: accounts.requests)
    metrics.bind("foveate_in_flight_tenants", lambda: accounts.tenants)
    for quantity in QUANTITIES:
        name = "media_bytes" if quantity == "bytes" else quantity
        metrics.bind(f"foveate_in_flight_{name}", partial(accounts.used, quantity))
        metrics.bind(f"foveate_in_flight_{name}_capacity", partial(accounts.capacity.__getitem__, quantity))


def observer(settings: Settings, metrics: Metrics, log: RequestLog | None, scope: AsyncExitStack) -> Observer:
    """Return what requests' records are fed to."""
    slo = settings.slo
    targets: dict[Modality, Targets] = {
        "text": Targets(**slo.text.model_dump()),
        "multimodal": Targets(**slo.multimodal.model_dump()),
    }
    prices = Prices(**settings.cost.model_dump())
    on = settings.observe.requests == "on"
    traces = _traces(settings.trace, scope) if on else None
    return Observer(metrics, log, CostBook(prices), targets, traces, topology=settings.topology.kind, on=on)


def _traces(settings: TraceSettings, scope: AsyncExitStack) -> TraceSink | None:
    if settings.otlp_endpoint is None:
        return None
    # Its libraries take a quarter of a second to import, which nobody without a collector should wait for.
    from foveate.observe.traces import Traces

    made = Traces(settings.otlp_endpoint, version=__version__, sample_rate=settings.sample_rate)
    made.start()
    scope.push_async_callback(partial(asyncio.to_thread, made.close))
    return made


def request_log(settings: Settings, scope: AsyncExitStack) -> RequestLog | None:
    chosen = settings.log
    if "off" in (chosen.requests, settings.observe.requests):
        return None
    path = None if chosen.requests == "stdout" else Path(chosen.requests)
    made = RequestLog(path, rotate_bytes=chosen.rotate_bytes, keep_files=chosen.keep_files)
    try:
        made.start()
    except OSError as error:
        raise StartupError(
            f"The request log {chosen.requests!r} cannot be opened: {error.strerror}. Set log.requests to a writable file."
        ) from error
    scope.push_async_callback(partial(asyncio.to_thread, made.close))
    return made
