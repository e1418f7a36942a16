"""What the settings alone can tell is wrong, told before anything is loaded.

A start, a reload and ``foveate settings`` run the same checks: a file that one of them takes is taken by all. Does not cover types, bounds
and names of settings (:mod:`foveate.settings`), nor what only the machine can tell: the model, its memory, the port, the log's file.
"""

from __future__ import annotations

from dataclasses import dataclass

from foveate.assembly.bounds import arena_bytes
from foveate.assembly.encoders import check_topology
from foveate.assembly.engines import check_engine
from foveate.assembly.relays import relay_config
from foveate.assembly.rules import reading
from foveate.engines.upstream.config import RelayConfig
from foveate.journey.reload import Reading
from foveate.media.proxy import Proxy
from foveate.media.resolve import parse_servers
from foveate.models.own_source import find_class
from foveate.settings import Settings


@dataclass(frozen=True)
class Checked:
    """Settings that a server could start with, and what was made of them on the way.

    ``name_servers`` are address and port; empty: the system's resolver. ``relay``: with ``--engine upstream``.
    """

    reading: Reading
    name_servers: tuple[tuple[str, int], ...]
    proxy: Proxy | None
    relay: RelayConfig | None = None


def check(settings: Settings) -> Checked:
    """Check them, the keys file included. Raises StartupError that names the setting."""
    check_topology(settings)
    check_engine(settings)
    if settings.model.encoder:
        find_class(settings.model.encoder)
    arena_bytes(settings)
    return Checked(
        reading=reading(settings),
        name_servers=tuple(parse_servers(settings.fetch.dns_servers)),
        proxy=Proxy.of(settings.fetch.proxy) if settings.fetch.proxy else None,
        relay=relay_config(settings) if settings.engine.kind == "upstream" else None,
    )
