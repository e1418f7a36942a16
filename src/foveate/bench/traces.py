"""Made-up runs of media lookups, from a seed: the same seed gives the same run. No run of real users stands behind them.

Sizes are those of embeddings: 64 to 4,096 rows of 7,168 bytes (3,584 dimensions of two bytes), small pictures more often than large
ones. What a hit saves is what making them takes: a fixed part, one that grows with the rows (and more than in proportion: attention),
and media decode, which depends on the picture as it was sent and not on how many rows it became.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from hashlib import blake2b
from itertools import accumulate, islice
from typing import Final

from foveate.decisions.simulation import Content

ROW_BYTES: Final = 7168
ROWS_MIN, ROWS_MAX = 64, 4096

FIXED_MS: Final = 4.0
ROW_MS: Final = 0.03
ROW_SQUARED_MS: Final = 1e-5
DECODE_MS_MAX: Final = 120.0
"""About what a 12-megapixel JPEG takes."""


class Supply:
    """Contents that nobody has seen before."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._made = 0

    def new(self) -> Content:
        """Make a content: log-uniform in rows and, on its own, in the time of its media decode."""
        self._made += 1
        digest = blake2b(b"%d %d" % (self._seed, self._made), digest_size=32).hexdigest()
        rows = int(ROWS_MIN * (ROWS_MAX / ROWS_MIN) ** self._random.random())
        decode_ms = DECODE_MS_MAX ** self._random.random()
        cost_ms = FIXED_MS + ROW_MS * rows + ROW_SQUARED_MS * rows * rows + decode_ms
        return Content(digest, rows * ROW_BYTES, cost_ms)


def zipf(lookups: int, exponent: float, seed: int, *, contents: int) -> list[Content]:
    """Independent lookups of ``contents`` media, the n-th of which is looked up in proportion to ``n ** -exponent``."""
    supply = Supply(seed)
    media = [supply.new() for _ in range(contents)]
    weights = list(accumulate(rank**-exponent for rank in range(1, contents + 1)))
    return random.Random(seed + 1).choices(media, cum_weights=weights, k=lookups)


def chat(lookups: int, seed: int, *, conversations: int, window: int = 8, turns: float = 10.0) -> list[Content]:
    """Conversations that resend their last ``window`` pictures every turn and add one, ``turns`` turns on average.

    ``conversations`` are under way at once and take turns at random; one that ends makes way for a new one.
    """
    chooser, supply = random.Random(seed + 1), Supply(seed)
    under_way: list[list[Content]] = [[] for _ in range(conversations)]
    trace: list[Content] = []
    while len(trace) < lookups:
        number = chooser.randrange(conversations)
        pictures = under_way[number]
        pictures.append(supply.new())
        del pictures[:-window]
        trace += pictures
        if chooser.random() < 1 / turns:
            under_way[number] = []
    return trace[:lookups]


def scans(lookups: int, exponent: float, seed: int, *, contents: int, share: float = 0.5) -> list[Content]:
    """Zipf lookups among which a batch job reads media that never come back: ``share`` of all, in runs of 2,000."""
    run = 2000
    chooser, supply = random.Random(seed + 2), Supply(seed + 3)
    lasting = iter(zipf(lookups, exponent, seed, contents=contents))
    trace: list[Content] = []
    while len(trace) < lookups:
        if chooser.random() < share:
            trace += (supply.new() for _ in range(run))
        else:
            trace += islice(lasting, run)
    return trace[:lookups]


def unique(lookups: int, seed: int) -> list[Content]:
    """Media none of which comes back."""
    supply = Supply(seed)
    return [supply.new() for _ in range(lookups)]


def workloads(lookups: int) -> Mapping[str, Callable[[int], list[Content]]]:
    """The benchmark's runs of ``lookups``, by name, each to be made from a seed."""
    contents = lookups // 10
    return {
        "Zipf 0.6": lambda seed: zipf(lookups, 0.6, seed, contents=contents),
        "Zipf 0.9": lambda seed: zipf(lookups, 0.9, seed, contents=contents),
        "Zipf 1.2": lambda seed: zipf(lookups, 1.2, seed, contents=contents),
        "chat": lambda seed: chat(lookups, seed, conversations=max(lookups // 500, 1)),
        "scans over Zipf 0.9": lambda seed: scans(lookups, 0.9, seed, contents=contents),
    }
