"""Which of several servers gets a request: filter, score, pick. Pure: the caller tells what is known, the answer is an index.

*Filter*: servers that cannot be asked now are not among the candidates; one whose places are all taken is passed over.

*Score*: what the request would wait for there and then cost, in prompt tokens (visual and text alike) for each unit of the server's
capacity: ``(outstanding + demand - matched) / capacity``. Capacity is the server's weight times the share that it may have now, which
grows from :data:`SHARE_FIRST` to 1 after it came back, so that a recovered server is not run over.

*Affinity*: ``matched`` are tokens of this request that the server has cached, by the beginning of the prompt or because it saw the same
picture. They lower the cost, so a request goes where its pictures were until waiting there costs more than they save. Less than
:data:`MATCHED_MIN` of the request is no reason to go anywhere: else a short system prompt would gather all on one server. And they count
at all only while the server's load is at most ``bound`` times the mean load that all candidates would have: what is popular cannot make a
hot server hotter (consistent hashing with bounded loads has the same rule: Mirrokni, Thorup and Zadimoghaddam, 2018).

*Pick*: the lowest cost; between equals, turn by turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

SHARE_FIRST: Final = 0.1
"""Of its capacity, what a server gets right after it came back."""
MATCHED_MIN: Final = 0.25
"""The part of a request's tokens that has to be cached somewhere before it counts."""
STREAM_TOKENS: Final = 64
"""What a request counts for after its prefill, in prompt tokens: a running stream takes a row of each batch, little beside a prefill."""


class Candidate(msgspec.Struct, frozen=True):
    """A server that could be asked. Tokens are prompt tokens; ``places`` is how many requests it may have at once."""

    weight: float = 1.0
    share: float = 1.0
    outstanding: float = 0.0
    in_flight: int = 0
    places: int = 1
    matched: float = 0.0

    @property
    def capacity(self) -> float:
        """How much it takes beside others."""
        return self.weight * self.share

    @property
    def load(self) -> float:
        """What is before a new request, for each unit of capacity."""
        return self.outstanding / self.capacity

    @property
    def full(self) -> bool:
        """Whether its places are taken; of a server that just came back only some are there."""
        return self.in_flight >= max(1, int(self.places * self.share))


def pick(candidates: Sequence[Candidate], demand: float, *, bound: float, turn: int = 0) -> int | None:
    """Return the index of the server to ask, or None when all are full.

    ``demand`` are the request's prompt tokens, ``turn`` counts the requests so far. Raises ValueError unless ``bound`` is 1 or more.
    """
    if bound < 1:
        raise ValueError("a bound below the mean load would leave servers out that are idle")
    free = [index for index, candidate in enumerate(candidates) if not candidate.full]
    if not free:
        return None
    mean = (sum(one.outstanding for one in candidates) + demand) / sum(one.capacity for one in candidates)
    costs = {index: _cost(candidates[index], demand, bound * mean) for index in free}
    lowest = min(costs.values())
    equal = [index for index in free if costs[index] == lowest]
    return equal[turn % len(equal)]


def _cost(candidate: Candidate, demand: float, load_max: float) -> float:
    matched = min(candidate.matched, demand)
    if matched < MATCHED_MIN * demand or candidate.load > load_max:
        matched = 0.0
    return (candidate.outstanding + demand - matched) / candidate.capacity
