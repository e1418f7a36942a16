"""Which pictures an encode worker is given next. Pure: a view of those that wait and of what was done so far in, a choice out.

*Tenants* share by visual tokens: the turn is with the one who has had the fewest; who comes anew begins level with the one who has had
least, so that nobody saves up and nobody has to catch up.

*Within a tenant* the picture goes first whose request has the least left to encode, so that a single picture passes a long request; but
after :data:`PASSED_MAX` batches that passed over the oldest picture, the oldest goes. So of what a tenant is given, a long request has at
least one batch of ``PASSED_MAX + 1`` however many short ones come; and a single picture waits for at most one batch of a longer request,
beside what the workers hold already, however many of those wait.

*A batch* is that picture and those of its shape, whoever's, in order of arrival, within the bounds on pictures and visual tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import msgspec

from foveate.decisions.batching import choose_encode_batch

PASSED_MAX: Final = 3
"""Batches in a row that may pass over a tenant's oldest picture."""


class WaitingPicture(msgspec.Struct, frozen=True):
    """A picture that waits. ``tokens`` are its own visual tokens, ``request_tokens`` those of all its request's that wait.

    Pictures of one ``shape`` may be encoded together.
    """

    tenant: str
    tokens: int
    request_tokens: int
    shape: Hashable


class Given(msgspec.Struct, frozen=True):
    """What tenants were given so far: visual tokens, and batches in a row that passed over the oldest picture of each."""

    tokens: Mapping[str, float] = {}
    passed: Mapping[str, int] = {}


class BatchBounds(msgspec.Struct, frozen=True):
    """What one batch may hold. A single picture may have more tokens."""

    pictures_max: int
    tokens_max: int


class Choice(msgspec.Struct, frozen=True):
    """The indices to encode together, the one whose turn it is first, and what is to be remembered."""

    indices: tuple[int, ...]
    given: Given


def choose(waiting: Sequence[WaitingPicture], given: Given, bounds: BatchBounds) -> Choice:
    """Choose a batch of ``waiting``, which is in order of arrival. Raises ValueError when nothing waits."""
    levels = _levels(waiting, given)
    tenant = min(levels, key=lambda name: levels[name])  # between equals, the first in line: dictionaries keep order
    own = [index for index, picture in enumerate(waiting) if picture.tenant == tenant]
    oldest = own[0]
    passed = given.passed.get(tenant, 0)
    first = min(own, key=lambda index: (waiting[index].request_tokens, index)) if passed < PASSED_MAX else oldest
    order = [first, *(index for index in range(len(waiting)) if index != first)]
    chosen = choose_encode_batch(
        [waiting[index].shape for index in order],
        bounds.pictures_max,
        tokens=[waiting[index].tokens for index in order],
        tokens_max=bounds.tokens_max,
    )
    indices = tuple(order[place] for place in chosen)
    for index in indices:
        levels[waiting[index].tenant] += waiting[index].tokens
    counts = {name: count for name, count in given.passed.items() if name in levels}
    counts[tenant] = 0 if oldest in indices else passed + 1
    return Choice(indices, Given(levels, counts))


def _levels(waiting: Sequence[WaitingPicture], given: Given) -> dict[str, float]:
    """Return what each tenant that waits counts as having had; those that wait no more are forgotten."""
    if not waiting:
        raise ValueError("nothing waits")
    tenants = dict.fromkeys(picture.tenant for picture in waiting)
    least = min((given.tokens[name] for name in tenants if name in given.tokens), default=0.0)
    return {name: given.tokens.get(name, least) for name in tenants}
