"""What is known of an API key. The key itself is never kept."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from foveate.core.budget import DEFAULT_TIER

KEY_CHARACTERS_MIN: Final = 20
"""Keys are stored as plain SHA-256, which only holds for what cannot be guessed: ``foveate keys new`` makes 256 random bits."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key's digest, whose it is and what it may do. ``may_use``: tiers that a request may ask for instead of ``tier``."""

    tenant: str
    sha256: str
    tier: str = DEFAULT_TIER
    may_use: tuple[str, ...] = ()
    admin: bool = False


def digest(key: str) -> str:
    """Return the hexadecimal SHA-256 of a key's bytes."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def key_fault(key: str) -> str | None:
    """Say what keeps a text from being a key that can be sent in a header and not be guessed; None if nothing does."""
    if not all("!" <= character <= "~" for character in key):
        return "a key is printable ASCII without spaces"
    if len(key) < KEY_CHARACTERS_MIN:
        return f"a key has at least {KEY_CHARACTERS_MIN} characters; foveate keys new makes one"
    return None
