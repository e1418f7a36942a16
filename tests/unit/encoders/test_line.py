"""The line before the encode workers: what one worker is given never costs a tenant or a request its turn at another."""

from __future__ import annotations

import itertools

from foveate.core.media import PreparedImage
from foveate.core.memory import Slot, TensorBundle
from foveate.decisions.encode_order import PASSED_MAX, BatchBounds
from foveate.encoders.line import Line
from foveate.encoders.port import Purpose
from foveate.encoders.ticket import Ticket
from foveate.observe.load import Load

_NUMBERS = itertools.count(1)
_SLOT = Slot(0, 64)


def ticket(tenant: str, request: str, owner: int) -> Ticket:
    prepared = PreparedImage("", 100, TensorBundle(_SLOT, (), 64), {}, ())
    made = Ticket(next(_NUMBERS), prepared, _SLOT, float("inf"), Purpose(tenant, request, request))
    made.owner = owner
    return made


def line() -> Line:
    return Line(BatchBounds(1, 10**9), Load())


async def test_a_crowd_at_all_workers_keeps_nobody_out_who_waits_for_one() -> None:
    waiting = line()
    for number in range(40):
        waiting.add(ticket("crowd", f"r{number}", number % 2))
    waiting.add(ticket("one", "r", 1))
    served = [one.purpose.tenant for _ in range(3) for owner in (0, 1) for one in waiting.next((owner,))]
    assert "one" in served


async def test_a_long_request_has_its_share_of_one_worker_while_others_are_given_other_tenants() -> None:
    waiting = line()
    for _ in range(3):
        waiting.add(ticket("a", "long", 0))
    served: list[str] = []
    for number in range(2 * (PASSED_MAX + 1)):
        waiting.add(ticket("a", f"short {number}", 0))
        waiting.add(ticket("b", f"r{number}", 1))
        served += [one.purpose.request for one in waiting.next((0,))]
        waiting.next((1,))
    assert served.count("long") == 2


async def test_what_failed_at_a_worker_is_not_taken_from_others_for_it() -> None:
    waiting = line()
    failed = ticket("t", "r", 1)
    failed.failed_at.add(0)
    waiting.add(failed)
    assert waiting.next((1,), not_for=0) == []
    assert waiting.next((1,)) == [failed]
    assert not len(waiting)
