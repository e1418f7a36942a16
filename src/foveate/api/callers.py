"""Reads who asks from a request's headers. Whether the key is known, and what it may, is the service's to say.

A key is read where it is used and kept nowhere, so that it cannot get into a log, an error or a representation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foveate.core.budget import Caller
from foveate.core.errors import NotPermitted, Unauthenticated
from foveate.journey.port import Service

_KEY_BYTES_MAX: Final = 4096
_TIER_BYTES_MAX: Final = 256

Header = Callable[[bytes], bytes]
"""Returns a request header by its lower-case name, empty if absent."""


def caller_of(service: Service, header: Header) -> Caller:
    """Return who sent these headers. ``Authorization: Bearer`` counts before ``x-api-key``; an empty one counts as absent.

    Raises Unauthenticated, NotPermitted.
    """
    key = _bearer(header(b"authorization")) or header(b"x-api-key").strip()
    if len(key) > _KEY_BYTES_MAX:
        raise Unauthenticated
    tier = header(b"x-foveate-tier").strip()
    if len(tier) > _TIER_BYTES_MAX:
        raise NotPermitted("There is no tier with a name that long.")
    return service.caller(key.decode("latin-1") or None, tier.decode("latin-1") or None)


def _bearer(authorization: bytes) -> bytes:
    scheme, _, key = authorization.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
