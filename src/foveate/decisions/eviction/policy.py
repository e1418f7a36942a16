"""The interface of an eviction policy."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Policy(Protocol[K]):
    """The order in which entries that nobody uses are given up.

    A key is *in use* from :meth:`add` or :meth:`touch` until :meth:`admit`. :class:`.Holdings` calls :meth:`add` for keys that
    are not there and all others for keys that are, and gives demoted keys up before it asks for one.
    """

    def add(self, key: K, size: int, cost_ms: float) -> None:
        """``key`` is new, of ``size`` bytes, and in use. A later hit on it saves ``cost_ms`` milliseconds."""
        ...

    def touch(self, key: K) -> None:
        """``key`` was found, and is in use (it may have been already)."""
        ...

    def admit(self, key: K) -> None:
        """Nobody uses ``key`` any more: it may be given up."""
        ...

    def remove(self, key: K) -> None:
        """Forget ``key``, in use or not: it went for a reason that says nothing about its worth."""
        ...

    def evict(self) -> K | None:
        """Choose a key to give up, forget it and return it. ``None`` when every key is in use."""
        ...
