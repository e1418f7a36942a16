"""From settings to what the relay is told of the servers behind this one."""

from __future__ import annotations

from pathlib import Path

from foveate import __version__
from foveate.core.errors import StartupError
from foveate.engines.upstream.config import RelayConfig, ServerConfig
from foveate.settings import Settings, UpstreamServer


def relay_config(settings: Settings) -> RelayConfig:
    """Return what the relay is told. Raises StartupError when the upstreams cannot be meant so."""
    chosen = settings.upstream
    try:
        servers = chosen.all()
    except ValueError as error:
        first = str(error).partition("\n")[0]
        raise StartupError(f"{first[0].upper()}{first[1:]}. Give --upstream http://host:port.") from error
    if chosen.store is not None and any((server.mode or chosen.mode) != "embeds" for server in servers):
        raise StartupError("upstream.store is for embeddings: set upstream.mode to embeds, or leave it out.")
    return RelayConfig(
        servers=tuple(_server(settings, server) for server in servers),
        user_agent=f"foveate/{__version__}",
        served_name=settings.model.served_name,
        connect_seconds=chosen.connect_seconds,
        health_seconds=chosen.health_seconds,
        health_path=chosen.health_path,
        failures_max=chosen.failures_max,
        recover_seconds=chosen.recover_seconds,
        affinity_bound=chosen.affinity_bound,
        waiting_max=settings.engine.queue_depth_max,
        start_seconds_max=settings.server.start_seconds_max,
        store=None if chosen.store is None else Path(chosen.store),
        store_bytes_max=chosen.store_bytes_max,
    )


def _server(settings: Settings, server: UpstreamServer) -> ServerConfig:
    try:
        key = server.api_key()
    except KeyError as error:
        raise StartupError(f"The environment variable {error} of the upstream {server.label} is not set.") from error
    chosen = settings.upstream
    return ServerConfig(
        name=server.label,
        url=server.url,
        weight=server.weight,
        api_key=key,
        models=server.models,
        concurrency_max=server.concurrency_max or chosen.concurrency_max,
        mode=server.mode or chosen.mode,
        uuid=server.uuid or chosen.uuid,
    )
