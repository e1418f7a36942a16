"""What the relay is told once: which servers there are, and how to treat them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

Mode = Literal["bytes", "url", "embeds"]
Takes = Literal["auto", "on", "off"]


class ServerConfig(msgspec.Struct, frozen=True):
    """One server. ``models`` maps clients' names to its own; empty: all that it lists, by its own names.

    ``mode``: media go on as bytes, as the client's own URL, or as embeddings. ``uuid``: whether it takes a uuid beside media.
    """

    name: str
    url: str
    weight: float = 1.0
    api_key: str | None = None
    models: Mapping[str, str] = {}
    concurrency_max: int = 256
    mode: Mode = "bytes"
    uuid: Takes = "auto"


class RelayConfig(msgspec.Struct, frozen=True):
    """All servers, and what holds for each. ``served_name`` is the client's name for the first model of servers without a map.

    ``waiting_max`` bounds the requests that wait for a place at any server.
    """

    servers: tuple[ServerConfig, ...]
    user_agent: str
    served_name: str | None = None
    connect_seconds: float = 2.0
    health_seconds: float = 2.0
    health_path: str = "/health"
    failures_max: int = 3
    recover_seconds: float = 10.0
    affinity_bound: float = 1.25
    waiting_max: int = 256
    start_seconds_max: float = 600.0
    store: Path | None = None
    """Directory for embeddings that the servers, on this machine, take by name; None: they are sent."""
    store_bytes_max: int = 1 << 30
