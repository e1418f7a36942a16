"""From settings to what may change while the server runs (tiers, keys, URL policy), and to the fetcher."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec

from foveate import __version__
from foveate.core.clock import wall
from foveate.journey.key_ring import KeyRing
from foveate.journey.port import UrlTerms
from foveate.journey.reload import Reading
from foveate.journey.rules import Rules
from foveate.media.fetch import Fetcher, FetchLimits
from foveate.media.policy import UrlPolicy
from foveate.media.proxy import Proxy
from foveate.media.resolve import ServerResolver
from foveate.settings import Settings, budgets, flat, read_keys, restart_keys


def reading(settings: Settings) -> Reading:
    """Make the rules. Raises StartupError."""
    tiers = budgets(settings.multimodal_budget)
    if settings.engine.kind == "upstream":
        # Bytes go on as they came, so that nothing can be made to fit.
        tiers = {name: msgspec.structs.replace(tier, on_excess={}) for name, tier in tiers.items()}
    values, restart = flat(settings), restart_keys()
    fetch = settings.fetch
    policy = policy_of(settings)
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


def policy_of(settings: Settings) -> UrlPolicy:
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


def fetcher(
    settings: Settings, scope: AsyncExitStack, *, name_servers: Sequence[tuple[str, int]], proxy: Proxy | None
) -> Fetcher:
    """Without ``name_servers`` the system resolves."""
    made = Fetcher(
        user_agent=_user_agent(settings),
        limits=_fetch_limits(settings),
        resolver=ServerResolver(name_servers) if name_servers else None,
        proxy=proxy,
    )
    scope.push_async_callback(made.aclose)
    return made


def _user_agent(settings: Settings) -> str:
    return settings.fetch.user_agent.replace("{version}", __version__)
