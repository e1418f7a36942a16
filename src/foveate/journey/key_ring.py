"""API keys: which tenant and tier a key stands for. Keys themselves are nowhere, only their SHA-256: a ring that leaks opens nothing.

A key is found by its digest, so no comparison takes a time that tells of another key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from foveate.core.keys import ApiKey, digest


class KeyRing:
    """The keys of one version of the rules. Empty: nobody needs a key."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._by_digest: Mapping[str, ApiKey] = MappingProxyType({key.sha256: key for key in keys})

    def __len__(self) -> int:
        return len(self._by_digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRing) and self._by_digest == other._by_digest

    __hash__ = None  # type: ignore[assignment]

    def find(self, key: str) -> ApiKey | None:
        """Return what is known of a key, or None."""
        return self._by_digest.get(digest(key))

    @property
    def admin(self) -> bool:
        """Whether any of them may use the admin API."""
        return any(key.admin for key in self._by_digest.values())

    def tenants(self) -> dict[str, int]:
        """Return the number of keys of each tenant."""
        return dict(sorted(Counter(key.tenant for key in self._by_digest.values()).items()))
