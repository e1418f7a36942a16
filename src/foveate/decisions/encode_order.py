"""Which pictures an encode worker is given next. Pure: a view of those that wait and of what was done so far in, a choice out.

*Tenants* share by visual tokens, whichever workers their pictures go to: the turn is with the one who has had the fewest; who comes anew
begins level with the one who has had least, so that nobody saves up and nobody has to catch up.

*Within a tenant*, of what this worker may be given, the picture goes first whose request has the least left to encode, so that a single
picture passes a long request; but a picture that :data:`PASSED_MAX` batches passed over as the oldest goes. So of what a worker is given of
a tenant, a long request has at least one batch of ``PASSED_MAX + 1`` however many short ones come; and a single picture waits there for at
most one batch of a longer request, beside what the worker holds already, however many of those wait.

*A batch* is that picture and those of its shape, whoever's, in order of arrival, within the bounds on pictures and visual tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import msgspec

from foveate.decisions.batching import choose_encode_batch

PASSED_MAX: Final = 3
"""Batches that may pass over a tenant's oldest picture."""


class WaitingPicture(msgspec.Struct, frozen=True):
    """A picture that waits. ``tokens`` are its own visual tokens, ``request_tokens`` those of all its request's that wait.

    Pictures of one ``shape`` may be encoded together. ``passed_over`` counts the batches that passed it over as the oldest. One that is not
    ``open`` to the worker only tells that its tenant waits.
    """

    tenant: str
    tokens: int
    request_tokens: int
    shape: Hashable
    passed_over: int = 0
    open: bool = True


class BatchBounds(msgspec.Struct, frozen=True):
    """What one batch may hold. A single picture may have more tokens."""

    pictures_max: int
    tokens_max: int


class Choice(msgspec.Struct, frozen=True):
    """The indices to encode together, the one whose turn it is first, and what is to be remembered: the visual tokens that tenants were
    given so far, and the oldest picture that was passed over, if one was.
    """

    indices: tuple[int, ...]
    given: Mapping[str, float]
    passed_over: int | None


def choose(waiting: Sequence[WaitingPicture], given: Mapping[str, float], bounds: BatchBounds) -> Choice:
    """Choose a batch of ``waiting``, which is in order of arrival. Raises ValueError when nothing that waits is open to the worker."""
    levels = _levels(waiting, given)
    open_ = [index for index, picture in enumerate(waiting) if picture.open]
    if not open_:
        raise ValueError("nothing waits")
    # Between equals, the first in line.
    tenant = waiting[min(open_, key=lambda index: levels[waiting[index].tenant])].tenant
    own = [index for index in open_ if waiting[index].tenant == tenant]
    oldest = own[0]
    shortest = min(own, key=lambda index: (waiting[index].request_tokens, index))
    first = shortest if waiting[oldest].passed_over < PASSED_MAX else oldest
    order = [first, *(index for index in open_ if index != first)]
    chosen = choose_encode_batch(
        [waiting[index].shape for index in order],
        bounds.pictures_max,
        tokens=[waiting[index].tokens for index in order],
        tokens_max=bounds.tokens_max,
    )
    indices = tuple(order[place] for place in chosen)
    for index in indices:
        levels[waiting[index].tenant] += waiting[index].tokens
    return Choice(indices, levels, None if oldest in indices else oldest)


def _levels(waiting: Sequence[WaitingPicture], given: Mapping[str, float]) -> dict[str, float]:
    """Return what each tenant that waits counts as having had; those that wait no more are forgotten."""
    tenants = {picture.tenant for picture in waiting}
    least = min((given[name] for name in tenants if name in given), default=0.0)
    return {name: given.get(name, least) for name in tenants}
