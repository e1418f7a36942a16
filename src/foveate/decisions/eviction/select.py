"""Eviction policies by name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Literal, TypeVar, get_args

from foveate.decisions.eviction.gdsf import SavedPerByte
from foveate.decisions.eviction.lru import LeastRecentlyUsed
from foveate.decisions.eviction.policy import Policy
from foveate.decisions.eviction.s3fifo import SmallMainGhost

K = TypeVar("K", bound=Hashable)

PolicyName = Literal["lru", "s3_fifo", "gdsf"]
POLICY_NAMES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
"""docs/caches.md tells when a policy other than ``lru`` pays."""


def make_policy(name: PolicyName, bytes_max: int) -> Policy[K]:
    """Return a new policy for one cache of ``bytes_max``."""
    if name == "s3_fifo":
        return SmallMainGhost(bytes_max)
    if name == "gdsf":
        return SavedPerByte()
    return LeastRecentlyUsed()
