"""What is known of an API key. The key itself is never kept."""

from __future__ import annotations

import msgspec

from foveate.core.budget import DEFAULT_TIER


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key's digest (hexadecimal SHA-256), whose it is and what it may do. ``may_use``: tiers that a request may ask for instead."""

    tenant: str
    sha256: str
    tier: str = DEFAULT_TIER
    may_use: tuple[str, ...] = ()
    admin: bool = False
