"""Reads who asks from a request's headers. Whether the key is known, and what it may, is the service's to say.

A key is read where it is used and kept nowhere, so that it cannot get into a log, an error or a representation. Headers that say two
different things are refused: which of them counts would depend on what stands between client and server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from foveate.core.budget import TIER_HEADER, Caller
from foveate.core.errors import InvalidParameter, NotPermitted, Unauthenticated
from foveate.journey.port import Service

_KEY_BYTES_MAX: Final = 4096
_TIER_BYTES_MAX: Final = 256
_TIER_NAME: Final = TIER_HEADER.lower().encode()


def caller_of(service: Service, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
    """Return who sent these headers (lower-case names). An empty one, or an ``Authorization`` that is not Bearer, counts as absent.

    Raises InvalidParameter (two different keys or tiers), Unauthenticated, NotPermitted.
    """
    keys: dict[bytes, str] = {}
    tiers: set[bytes] = set()
    for name, value in headers:
        if name == b"authorization":
            keys.setdefault(_bearer(value), "Authorization")
        elif name == b"x-api-key":
            keys.setdefault(value.strip(), "x-api-key")
        elif name == _TIER_NAME:
            tiers.add(value.strip())
    keys.pop(b"", None)
    tiers.discard(b"")
    if len(keys) > 1:
        names = list(dict.fromkeys(keys.values()))
        where = " and ".join(names) if len(names) > 1 else f"The {names[0]} headers"
        raise InvalidParameter(f"{where} hold different API keys; send one key.", param=names[-1])
    if len(tiers) > 1:
        raise InvalidParameter(f"The {TIER_HEADER} headers name different tiers; send one.", param=TIER_HEADER)
    key, tier = next(iter(keys), b""), next(iter(tiers), b"")
    if len(key) > _KEY_BYTES_MAX:
        raise Unauthenticated
    if len(tier) > _TIER_BYTES_MAX:
        raise NotPermitted("There is no tier with a name that long.")
    return service.caller(key.decode("latin-1") or None, tier.decode("latin-1") or None)


def _bearer(authorization: bytes) -> bytes:
    scheme, _, key = authorization.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
