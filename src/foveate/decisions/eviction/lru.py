"""Least recently used: what was used longest ago goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class LeastRecentlyUsed(Generic[K]):
    """The order of the end of the last use. Every method is O(1)."""

    def __init__(self) -> None:
        self._unused: OrderedDict[K, None] = OrderedDict()

    def add(self, key: K, size: int, cost_ms: float) -> None:
        """A key in use has no place in the order."""

    def touch(self, key: K) -> None:
        self._unused.pop(key, None)

    def admit(self, key: K) -> None:
        self._unused[key] = None

    def remove(self, key: K) -> None:
        self._unused.pop(key, None)

    def evict(self) -> K | None:
        return self._unused.popitem(last=False)[0] if self._unused else None
