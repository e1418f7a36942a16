"""From settings to what bounds a server: memory, caches, places, limits."""

from __future__ import annotations

from foveate.caches.encoder import EncoderCache
from foveate.caches.media import MediaCache
from foveate.caches.processor import ProcessorCache
from foveate.core.errors import StartupError
from foveate.decisions.canary import Thresholds
from foveate.journey.canary import Load, Terms
from foveate.journey.in_flight import InFlight
from foveate.journey.places import Places
from foveate.journey.tools import Limits
from foveate.media.probe import Accepted
from foveate.runtime.arena import Arena
from foveate.settings import CacheSettings, Settings


def arena_bytes(settings: Settings) -> int:
    """Return the arena's size. Raises StartupError when the caches and one largest body would not fit beside each other."""
    sizes = settings.cache
    caches = sizes.processor_bytes_max + sizes.encoder_bytes_max + sizes.media_bytes_max
    needed = caches + 2 * settings.server.body_bytes_max
    if settings.limits.arena_bytes_max < needed:
        raise StartupError(
            f"limits.arena_bytes_max is {settings.limits.arena_bytes_max}, but the caches ({caches} bytes) and twice the largest "
            f"body need {needed}. Raise it, or lower cache.processor_bytes_max, cache.encoder_bytes_max, cache.media_bytes_max or "
            "server.body_bytes_max."
        )
    return settings.limits.arena_bytes_max


def apart_bytes(settings: Settings) -> int:
    """Return what lies beside that for prompts between prefill and token decode: there in every topology, as it can be changed."""
    return settings.topology.kv_bytes_max if settings.engine.kind == "embedded" else 0


def arena(settings: Settings) -> Arena:
    size, apart = arena_bytes(settings), apart_bytes(settings)
    try:
        return Arena(size, apart_bytes=apart)
    except (OSError, OverflowError) as error:
        raise StartupError(
            f"An arena of {size + apart} bytes cannot be mapped on this machine. Lower limits.arena_bytes_max (--limits-arena-bytes-max) "
            "or topology.kv_bytes_max."
        ) from error


def processor_cache(cache: CacheSettings, arena: Arena) -> ProcessorCache:
    return ProcessorCache(
        cache.processor_bytes_max, arena.release, policy=cache.processor_policy, curve_rate=cache.curve_sample_rate
    )


def encoder_cache(cache: CacheSettings, arena: Arena) -> EncoderCache:
    return EncoderCache(
        cache.encoder_bytes_max, arena.release, policy=cache.encoder_policy, curve_rate=cache.curve_sample_rate
    )


def media_cache(cache: CacheSettings, arena: Arena) -> MediaCache:
    return MediaCache(cache.media_bytes_max, arena.release, policy=cache.media_policy)


def limits(settings: Settings) -> Limits:
    wait = settings.engine.restart_wait_seconds
    return Limits(
        engine_wait_seconds=wait if wait is not None else 30.0 if settings.engine.kind == "vllm" else 4.0,
        body_bytes_max=settings.server.body_bytes_max,
        inline_bytes_min=settings.server.inline_bytes_min,
        request_seconds_max=settings.server.request_seconds_max,
        item_seconds_max=settings.server.request_seconds_max,
        answer_tokens_default=settings.limits.answer_tokens_default,
        pictures=Accepted(settings.media.formats, settings.media.animation_frames_max),
        decode_pixels_max=settings.media.decode_pixels_max,
        client_embeddings=settings.media.client_embeddings,
        caches_per_tenant=settings.cache.scope == "per_tenant",
        prefill_overlap=settings.engine.prefill_overlap,
    )


def canary_terms(settings: Settings, load: Load) -> Terms:
    chosen = settings.canary
    thresholds = Thresholds(
        cosine_min=chosen.cosine_min,
        norm_ratio_max=chosen.norm_ratio_max,
        error_ratio_max=chosen.error_ratio_max,
        latency_ratio_max=chosen.latency_ratio_max,
        samples_min=chosen.samples_min,
    )
    return Terms(load, thresholds, chosen.compared_share, end_seconds_max=settings.server.request_seconds_max)


def places(settings: Settings) -> Places:
    limits = settings.limits
    return Places(limits.multimodal_requests_max, waiting_max=limits.multimodal_waiting_max)


def in_flight(settings: Settings) -> InFlight:
    limits = settings.limits
    return InFlight(
        bytes_max=limits.media_bytes_in_flight_max,
        pixels_max=limits.pixels_in_flight_max,
        visual_tokens_max=limits.visual_tokens_in_flight_max,
    )
