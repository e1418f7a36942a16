"""What a cache would have done on a recorded or made-up run of lookups: exactly, by replay or by stack distances.

For benchmarks, tests and the simulator. Uses are instantaneous: nothing is in use while another entry is added.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from foveate.decisions.eviction import Holdings, PolicyName, make_policy

Integers = npt.NDArray[np.int64]


class Content(msgspec.Struct, frozen=True, eq=False):
    """One medium: its digest, the bytes its entry takes, and the milliseconds that a hit on it saves. Equal only to itself."""

    digest: str
    size: int
    cost_ms: float


class Outcome(msgspec.Struct, frozen=True):
    """What a cache did: shares (0..1) of the lookups that hit, and of the milliseconds that hits saved."""

    hit_ratio: float
    saved_share: float


def replay(trace: Sequence[Content], policy: PolicyName, bytes_max: int) -> Outcome:
    """Look up every content in turn in a cache of ``bytes_max``, adding what is missing. O(lookups)."""
    cache: Holdings[Content, None] = Holdings(bytes_max, make_policy(policy, bytes_max))
    hits, saved_ms, total_ms = 0, 0.0, 0.0
    for content in trace:
        total_ms += content.cost_ms
        held = cache.pin(content)
        if held is not None:
            hits += 1
            saved_ms += content.cost_ms
        else:
            held, _ = cache.add(content, None, content.size, content.cost_ms)
        if held is not None:
            cache.unpin(held)
    return Outcome(hits / max(len(trace), 1), saved_ms / total_ms if total_ms else 0.0)


class StackDistances:
    """What least-recently-used eviction does at every capacity at once, exactly, on bytes.

    A lookup hits if and only if its stack distance, the bytes of the distinct contents looked up since and its own, is within the
    capacity (Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970). All
    distances are computed together, in O(lookups · log lookups) and by arrays: a million lookups take seconds.
    """

    def __init__(self, trace: Sequence[Content]) -> None:
        last: dict[Content, int] = {}
        before = np.fromiter(
            (_swap(last, content, number) for number, content in enumerate(trace)), np.int64, len(trace)
        )
        sizes = np.fromiter((content.size for content in trace), np.int64, len(trace))
        costs = np.fromiter((content.cost_ms for content in trace), np.float64, len(trace))
        reuses = np.flatnonzero(before >= 0)
        since = before[reuses]
        # Between a lookup and the one before it of the same content, each other content is looked up for the first time where its own
        # lookup before lies further back still. All lookups up to ``since`` satisfy that too, and are taken off again.
        first = _sum_below(before + 1, sizes, reuses, since + 1)
        self._distances = first - np.cumsum(sizes)[since] + sizes[reuses]
        self._reuses, self._costs = reuses, costs[reuses]
        self._lookups, self._cost_ms = len(trace), float(costs.sum())
        self.bytes = sum(content.size for content in last)

    def at(self, bytes_max: int | None) -> Outcome:
        """Return what a cache of ``bytes_max`` (``None``: unlimited) would have done. O(lookups)."""
        hits = self._hits(bytes_max)
        saved_ms = float(self._costs[hits].sum())
        return Outcome(int(hits.sum()) / max(self._lookups, 1), saved_ms / self._cost_ms if self._cost_ms else 0.0)

    def hits(self, bytes_max: int | None) -> list[bool]:
        """Return for each lookup whether it would have hit."""
        hits = np.zeros(self._lookups, bool)
        hits[self._reuses[self._hits(bytes_max)]] = True
        return hits.tolist()

    def _hits(self, bytes_max: int | None) -> npt.NDArray[np.bool_]:
        return self._distances <= (self.bytes if bytes_max is None else bytes_max)


def _swap(last: dict[Content, int], content: Content, number: int) -> int:
    """Note a lookup's number; return that of the lookup before of the same content, or -1."""
    before = last.get(content, -1)
    last[content] = number
    return before


def _sum_below(values: Integers, weights: Integers, ends: Integers, bounds: Integers) -> Integers:
    """Return for each query the sum of ``weights[:end]`` where ``values[:end]`` is below the query's bound.

    A wavelet matrix (Claude, Navarro, Ordóñez, "The wavelet matrix", Information Systems 47, 2015), a bit at a time.
    """
    sums = np.zeros(len(ends), np.int64)
    low, high = np.zeros(len(ends), np.int64), ends
    for bit in reversed(range(int(bounds.max(initial=0)).bit_length())):
        one = (values >> bit & 1).astype(bool)
        zeros_before = np.concatenate(([0], np.cumsum(~one)))
        weight_before = np.concatenate(([0], np.cumsum(np.where(one, 0, weights))))
        above = (bounds >> bit & 1).astype(bool)
        sums += np.where(above, weight_before[high] - weight_before[low], 0)
        low, high = (
            np.where(above, zeros_before[-1] + edge - zeros_before[edge], zeros_before[edge]) for edge in (low, high)
        )
        order = np.concatenate((np.flatnonzero(~one), np.flatnonzero(one)))
        values, weights = values[order], weights[order]
    return sums
