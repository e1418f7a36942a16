"""Every setting, declared once.

One line gives a setting its flag, environment name, file key, bounds, help and row in ``docs/settings.md``::

    port: int = setting(8000, "TCP port to listen on.", flag="--port", low=0, high=65535)

``declare`` says how. What there is stands in ``sections``, and by subject in ``media``, ``observe``, ``topology``, ``runtime``, ``vllm``
and ``upstreams``; ``tiers`` has what a request may cost (made from :data:`foveate.core.budget.FIELDS`). ``sources`` says where values come
from, ``page`` writes the reference.
"""

from __future__ import annotations

from foveate.settings.flat import flat, restart_keys
from foveate.settings.keys import read_keys
from foveate.settings.media import FetchSettings, MediaSettings
from foveate.settings.observe import CostSettings, LogSettings, ObserveSettings, SloSettings, TraceSettings
from foveate.settings.page import reference
from foveate.settings.runtime import RuntimeSettings
from foveate.settings.sections import (
    AuthSettings,
    CacheSettings,
    CanarySettings,
    EngineSettings,
    LimitSettings,
    ModelSettings,
    ServerSettings,
)
from foveate.settings.sources import Declared, Settings, declared, load
from foveate.settings.tiers import TierSettings, budgets
from foveate.settings.topology import ENCODERS_MAX, TopologySettings
from foveate.settings.upstreams import UpstreamServer, UpstreamSettings
from foveate.settings.vllm import VllmSettings

__all__ = [
    "ENCODERS_MAX",
    "AuthSettings",
    "CacheSettings",
    "CanarySettings",
    "CostSettings",
    "Declared",
    "EngineSettings",
    "FetchSettings",
    "LimitSettings",
    "LogSettings",
    "MediaSettings",
    "ModelSettings",
    "ObserveSettings",
    "RuntimeSettings",
    "ServerSettings",
    "Settings",
    "SloSettings",
    "TierSettings",
    "TopologySettings",
    "TraceSettings",
    "UpstreamServer",
    "UpstreamSettings",
    "VllmSettings",
    "budgets",
    "declared",
    "flat",
    "load",
    "read_keys",
    "reference",
    "restart_keys",
]
