"""Which encode worker a picture belongs to: rendezvous hashing with bounded load. Pure: the same contents and workers, the same owners.

Every content has an order of its own over all workers (the hash of both, highest first), and its owner is the first of them that is not
loaded beyond its share: rendezvous hashing (Thaler and Ravishankar, 1998) with the bound of consistent hashing with bounded loads
(Mirrokni, Thorup and Zadimoghaddam, 2018). So what a worker remembers of a content is met again there, a worker that comes or goes moves
only the contents that are or become its own, and no crowd at one content, or many pictures of one request, gather on one worker while
another has room."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

LOAD_BOUND: Final = 1.25
"""How many times the mean load an owner may have; the value that the bounded-loads paper recommends between balance and movement."""


def owner(content: str, loads: Mapping[int, float], demand: float, *, bound: float = LOAD_BOUND) -> int:
    """Return the worker that is to have a picture of ``demand`` tokens.

    ``loads`` are the tokens that each worker still has before it. A ``content`` that is not known (empty) goes where the load is least.
    Raises ValueError when there is no worker, or for a ``bound`` below 1, which could leave none."""
    if not loads or bound < 1:
        raise ValueError("an owner is one of some workers, and the least loaded of them is always within the bound")
    if not content:
        return min(loads, key=lambda member: (loads[member], member))
    # Pictures come whole, so the least loaded worker may be above the bound with one more; it may have it all the same.
    load_max = max(bound * (sum(loads.values()) + demand) / len(loads), min(loads.values()) + demand)
    return next(member for member in ranked(content, loads) if loads[member] + demand <= load_max)


def ranked(content: str, members: Mapping[int, float]) -> list[int]:
    """Return the workers in the content's own order."""
    return sorted(members, key=lambda member: _weight(content, member), reverse=True)


def _weight(content: str, member: int) -> bytes:
    return blake2b(f"{member}:{content}".encode(), digest_size=8).digest()
