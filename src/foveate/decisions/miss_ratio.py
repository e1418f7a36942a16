"""How a cache's hit ratio depends on its capacity, estimated from the lookups that it sees.

Spatially hashed sampling: a lookup is followed if and only if its content's digest is below a threshold, so that a content's lookups are
seen all or not at all, and distances among the sampled contents, scaled up, are those among all. After Waldspurger, Park, Garthwaite,
Ahmad, "Efficient MRC construction with SHARDS", FAST 2015, in its fixed-size form (the threshold sinks so that no more than a
fixed number of keys is followed), here for entries of different sizes: distances are bytes.

A small sample has by chance too many or too few of the hottest contents, and too many or too few of the bytes used lately. The paper's
SHARDS_adj takes the lookups it lacks for hits at the smallest distance. We know more: the cache that is watched tells of
each lookup whether it hit. So the scale of distances is corrected until as many sampled lookups hit at today's capacity as truly did, and
the sampled misses (hot contents hardly ever miss, so these are steadier than the hits) are scaled to the cache's own. Where the sample has
no miss, SHARDS_adj holds. docs/caches.md has the errors.

The curve is that of least-recently-used eviction, without uses that last. What it is good for: :mod:`.cache_sizing`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf, log2
from typing import Final, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from foveate.decisions.recency import Flags, Integers, RecencyStack


class Digested(Hashable, Protocol):
    """A cache key that names a content by its digest: lower-case hexadecimal, as evenly spread as a cryptographic hash is."""

    @property
    def digest(self) -> str: ...


K = TypeVar("K", bound=Digested)

Numbers = npt.NDArray[np.float64]

SAMPLES_MAX: Final = 8192
"""Keys followed at most, about 4 MB in CPython. The mean error with this many is 0.2 points (docs/caches.md)."""

HORIZON: Final = 64
"""Multiple of the capacity beyond which reuse may be forgotten: four times the largest multiple that is predicted."""

HALVE_AT: Final = 2_000_000
"""Lookups after which all counts are halved, so that the curve follows a change in the traffic."""

_BATCH: Final = 256
"""Lookups taken in at once: by arrays, a few hundred microseconds for all of them. What is read is always up to date."""

_BUCKETS_PER_OCTAVE: Final = 32
"""Distances are kept to 2.2 %."""

_BUCKETS: Final = 63 * _BUCKETS_PER_OCTAVE

_CORRECTION_MAX: Final = 2.0 * _BUCKETS_PER_OCTAVE
"""A factor of four: a sample of a few dozen keys is no further off, and a cache that is does not behave like the model."""

_HASH_DIGITS: Final = 16
_HASH_RANGE: Final = 16**_HASH_DIGITS


class Predicted(msgspec.Struct, frozen=True):
    """What a capacity would do for the lookups counted: share (0..1) of hits, milliseconds they save, bytes it would hold."""

    hit_ratio: float
    saved_ms: float
    bytes: int


class Seen(msgspec.Struct, frozen=True):
    """What was counted: all lookups, their hits, what they would cost without a cache and what hits saved, in milliseconds.

    ``sampled``: lookups followed since the start. ``followed``: keys followed now. ``rate``: share (0..1) of the contents followed now.
    ``seen_once``: share of the keys that were looked up only once. ``misses_over_modelled``: what the cache missed over what the sample
    says that least-recently-used eviction would have; far from 1, with many sampled, the cache does not behave like the model.
    """

    lookups: int
    hits: int
    cost_ms: float
    saved_ms: float
    sampled: int
    followed: int
    rate: float
    seen_once: float
    misses_over_modelled: float


class _Reuses:
    """Reuses by distance, and all lookups of the sample, both scaled up: in number, or in milliseconds."""

    __slots__ = ("by_distance", "hit", "sampled")

    def __init__(self) -> None:
        self.sampled = self.hit = 0.0
        self.by_distance: Numbers = np.zeros(_BUCKETS)

    def count(self, worths: Numbers, hits: Flags, reuses: Flags, buckets: Integers) -> None:
        """Count lookups: what each is worth, whether it hit, whether it was a reuse, and of the reuses the bucket."""
        self.sampled += float(worths.sum())
        self.hit += float(worths[hits].sum())
        self.by_distance += np.bincount(buckets, worths[reuses], _BUCKETS)

    def halve(self) -> None:
        self.sampled /= 2
        self.hit /= 2
        self.by_distance /= 2

    def within(self, places: Sequence[float]) -> list[float]:
        """Sum the reuses within each place, a distance on the buckets' scale. Within a bucket the curve is taken for straight."""
        sums: list[float] = np.interp(places, np.arange(_BUCKETS + 1), self._totals()).tolist()
        return sums

    def place(self, target: float) -> float:
        """Return the place within which the reuses sum to ``target``: the inverse of :meth:`within`."""
        totals = self._totals()
        if not 0 < target <= totals[-1]:
            return -inf if target <= 0 else inf
        after = int(np.searchsorted(totals, target))
        return after - 1 + float((target - totals[after - 1]) / (totals[after] - totals[after - 1]))

    def hits(self, places: Sequence[float], hit: float, missed: float) -> list[float]:
        """Return what would have hit within each place, when ``hit`` and ``missed`` is what truly did."""
        within = self.within(places)
        if self.sampled > self.hit:
            scale = missed / (self.sampled - self.hit)
            hits = [hit + missed - scale * (self.sampled - reused) for reused in within]
        else:
            lacking = hit + missed - self.sampled
            hits = [reused + lacking if reused else 0.0 for reused in within]
        return [min(max(value, 0.0), hit + missed) for value in hits]

    def _totals(self) -> Numbers:
        return np.concatenate(([0.0], np.cumsum(self.by_distance)))


class MissRatioCurve(Generic[K]):
    """The curve of one cache, which has ``capacity_bytes``.

    ``rate_max`` is the share of contents sampled at first; it sinks as more than ``samples_max`` keys are seen. Memory is bounded by
    ``samples_max``, whatever the traffic. Not safe to use from several threads.
    """

    def __init__(self, capacity_bytes: int, *, rate_max: float = 1.0, samples_max: int = SAMPLES_MAX) -> None:
        if not 0 < rate_max <= 1 or samples_max < 1:
            raise ValueError("a sampling rate is above 0 and at most 1, and at least one key is followed")
        self.capacity_bytes = capacity_bytes
        self._samples_max = samples_max
        self._sampled = 0
        self._set_threshold(int(rate_max * _HASH_RANGE))
        self._pending: list[tuple[K, int, float, bool]] = []
        """Lookups to be followed that were not taken in yet."""
        members = samples_max + _BATCH
        self._stack = RecencyStack(members, _BATCH)
        self._members: dict[K, int] = {}
        """The keys followed, by the number under which the arrays know them."""
        self._keys: list[K | None] = [None] * members
        self._free = list(range(members))
        self._hashes = np.zeros(members, np.uint64)
        self._once: Flags = np.zeros(members, bool)
        self._forgotten = self._forgotten_once = 0.0
        self._lookups = _Reuses()
        self._ms = _Reuses()
        self._hits = self._misses = self._saved_ms = self._missed_ms = 0.0

    def lookup(self, key: K, size: int, cost_ms: float, hit: bool) -> None:
        """Count a lookup of an entry of ``size`` bytes whose making takes ``cost_ms`` milliseconds, and whether it was spared them."""
        if hit:
            self._hits += 1
            self._saved_ms += cost_ms
        else:
            self._misses += 1
            self._missed_ms += cost_ms
        if key.digest < self._below:
            self._pending.append((key, size, cost_ms, hit))
            if len(self._pending) >= _BATCH:
                self._take_in()

    def seen(self) -> Seen:
        """Return what was counted."""
        self._take_in()
        keys = len(self._members) * self._weight + self._forgotten
        once = int(np.count_nonzero(self._once)) * self._weight + self._forgotten_once
        modelled = self._lookups.sampled - self._lookups.within((_place(self.capacity_bytes),))[0]
        return Seen(
            lookups=round(self._hits + self._misses),
            hits=round(self._hits),
            cost_ms=self._saved_ms + self._missed_ms,
            saved_ms=self._saved_ms,
            sampled=self._sampled,
            followed=len(self._members),
            rate=1 / self._weight,
            seen_once=once / keys if keys else 0.0,
            misses_over_modelled=self._misses / modelled if modelled > 0 else 1.0,
        )

    def predict(self, capacities: Sequence[int | None]) -> list[Predicted]:
        """Predict for each capacity in bytes; ``None`` is unlimited (as far as the horizon, when more keys came than can be followed)."""
        self._take_in()
        places = [inf if bytes_max is None else self._corrected(bytes_max) for bytes_max in capacities]
        hits = self._lookups.hits(places, self._hits, self._misses)
        saved = self._ms.hits(places, self._saved_ms, self._missed_ms)
        lookups = max(self._hits + self._misses, 1.0)
        footprint = round(self._stack.bytes * self._weight)
        held = [footprint if bytes_max is None else min(bytes_max, footprint) for bytes_max in capacities]
        return [Predicted(hit / lookups, ms, size) for hit, ms, size in zip(hits, saved, held, strict=True)]

    def _corrected(self, bytes_max: int) -> float:
        """Return the place that stands for a capacity in this sample.

        At today's capacity it is the place within which as many sampled lookups are reuses as truly hit. What the sample has too much of
        below today's capacity it has too much of above as well, among ever more bytes that it has right on average: so smaller
        capacities are corrected as today's is, and larger ones less, in proportion.
        """
        lookups, today = self._lookups, _place(self.capacity_bytes)
        lookup = self._weight / 2
        nearest = min(max(today, lookups.place(lookups.hit - lookup)), lookups.place(lookups.hit + lookup))
        shift = min(max(nearest - today, -_CORRECTION_MAX), _CORRECTION_MAX)
        return _place(bytes_max) + shift * min(1.0, self.capacity_bytes / max(bytes_max, 1))

    def _take_in(self) -> None:
        """Follow the lookups that are pending."""
        if not self._pending:
            return
        keys, sizes, costs, hits = zip(*self._pending, strict=True)
        self._pending.clear()
        self._sampled += len(keys)
        known = self._members.get
        numbers = [self._begin(key) if (number := known(key)) is None else number for key in keys]
        members, bytes_, hit = np.array(numbers), np.array(sizes, np.int64), np.array(hits, bool)
        above = self._stack.use(members, bytes_)
        reuses = above >= 0
        self._once[members[reuses]] = False
        distances = above[reuses] * self._weight + bytes_[reuses]
        buckets = np.log2(np.clip(distances, 1, None)) * _BUCKETS_PER_OCTAVE
        buckets = np.minimum(buckets, _BUCKETS - 1).astype(np.int64)
        self._lookups.count(np.full(len(keys), self._weight), hit, reuses, buckets)
        self._ms.count(np.array(costs) * self._weight, hit, reuses, buckets)
        if len(self._members) > self._samples_max:
            self._follow_fewer(len(self._members) - self._samples_max)
        if self._hits + self._misses >= HALVE_AT:
            self._halve()

    def _halve(self) -> None:
        self._hits /= 2
        self._misses /= 2
        self._saved_ms /= 2
        self._missed_ms /= 2
        self._forgotten /= 2
        self._forgotten_once /= 2
        self._lookups.halve()
        self._ms.halve()

    def _begin(self, key: K) -> int:
        """Follow a key from now on; return its number."""
        number = self._members[key] = self._free.pop()
        self._keys[number] = key
        self._hashes[number] = int(key.digest[:_HASH_DIGITS], 16)
        self._once[number] = True
        return number

    def _follow_fewer(self, excess: int) -> None:
        """Forget ``excess`` keys: those used longest ago as far as they are beyond the horizon, else those with the highest hash, for good.

        Without a horizon the threshold would sink forever under contents that never come back, and the sample would be full of them.
        """
        members, sizes = self._stack.oldest_first()
        held = np.cumsum(sizes[::-1])[::-1] * self._weight
        oldest = members[: min(excess, int(np.count_nonzero(held > HORIZON * self.capacity_bytes)))]
        self._forgotten += self._weight * len(oldest)
        self._forgotten_once += self._weight * int(np.count_nonzero(self._once[oldest]))
        self._forget(oldest)
        if len(oldest) == excess:
            return
        members = members[len(oldest) :]
        hashes = self._hashes[members]
        threshold = np.partition(hashes, len(oldest) - excess)[len(oldest) - excess]
        self._forget(members[hashes >= threshold])
        self._set_threshold(int(threshold))

    def _forget(self, members: Integers) -> None:
        self._stack.remove(members)
        self._once[members] = False
        for number in members.tolist():
            key, self._keys[number] = self._keys[number], None
            assert key is not None
            del self._members[key]
            self._free.append(number)

    def _set_threshold(self, threshold: int) -> None:
        # A digest of the same sixteen digits is longer, hence not below. No digest reaches "g".
        self._below = f"{threshold:0{_HASH_DIGITS}x}" if threshold < _HASH_RANGE else "g"
        self._weight = _HASH_RANGE / max(threshold, 1)


def _place(distance: float) -> float:
    """Return a distance in bytes on the scale of the buckets."""
    return log2(max(distance, 1)) * _BUCKETS_PER_OCTAVE
