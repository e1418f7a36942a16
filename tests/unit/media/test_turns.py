"""Whose job is next, against a plain list of queues."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.memory import Slot
from foveate.media.messages import Unpack
from foveate.media.ticket import Ticket
from foveate.media.turns import Turns

STEPS = st.lists(st.tuples(st.sampled_from(["add", "first", "next", "remove"]), st.sampled_from("abc")), max_size=40)


@given(STEPS)
def test_the_oldest_of_the_tenant_whose_turn_it_is(steps: list[tuple[str, str]]) -> None:
    asyncio.run(_drive(steps))


async def _drive(steps: list[tuple[str, str]]) -> None:
    turns, expected = Turns(), list[list[Ticket]]()
    for number, (step, whom) in enumerate(steps):
        ticket = Ticket(number, Unpack(Slot(0, 1), Slot(1, 1)), lambda: None, whom=whom)
        queue = next((queue for queue in expected if queue[0].whom == whom), None)
        if step == "add":
            turns.add(ticket)
            queue.append(ticket) if queue else expected.append([ticket])
        elif step == "first":
            turns.add_first(ticket)
            if queue:
                expected.remove(queue)
            expected.insert(0, [ticket, *(queue or [])])
        elif step == "remove" and queue:
            gone = queue.pop(len(queue) // 2)
            assert gone in turns
            assert turns.remove(gone)
            assert gone not in turns
            assert not turns.remove(gone)
            if not queue:
                expected.remove(queue)
        elif step == "next" and expected:
            queue = expected.pop(0)
            assert turns.next() is queue.pop(0)
            if queue:
                expected.append(queue)
        assert len(turns) == sum(map(len, expected))
    if not expected:
        with pytest.raises(KeyError):
            turns.next()
