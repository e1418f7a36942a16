"""What a cache keeps and what it gives up. Pure.

:mod:`.holdings` counts entries, bytes and pins; a :class:`Policy` orders what nobody uses: :mod:`.lru`, :mod:`.s3fifo`, :mod:`.gdsf`.
"""

from foveate.decisions.eviction.gdsf import SavedPerByte
from foveate.decisions.eviction.holdings import EVICTION_REASONS, CacheStats, EvictionReason, Held, Holdings
from foveate.decisions.eviction.lru import LeastRecentlyUsed
from foveate.decisions.eviction.policy import Policy
from foveate.decisions.eviction.s3fifo import SmallMainGhost
from foveate.decisions.eviction.select import POLICY_NAMES, PolicyName, make_policy

__all__ = [
    "EVICTION_REASONS",
    "POLICY_NAMES",
    "CacheStats",
    "EvictionReason",
    "Held",
    "Holdings",
    "LeastRecentlyUsed",
    "Policy",
    "PolicyName",
    "SavedPerByte",
    "SmallMainGhost",
    "make_policy",
]
