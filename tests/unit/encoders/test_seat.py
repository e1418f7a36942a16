"""A seat's account of what its worker holds."""

from __future__ import annotations

from tests.unit.encoders.test_line import ticket
from tests.unit.engines.played import INFO, FakeWorker

from foveate.encoders.messages import WorkerReceives, WorkerSends
from foveate.encoders.seat import Seat
from foveate.observe.load import Load
from foveate.runtime.port import WorkerSpec
from foveate.runtime.pulse import Pulse


async def test_what_it_holds_can_be_read_while_it_changes() -> None:
    seat = Seat(0, Load().encoder(), Pulse(1.0))
    seat.taken(FakeWorker(WorkerSpec("encoder", 0, "", {}, WorkerReceives, WorkerSends), False, INFO), "version")
    seat.give([ticket("t", "a", 0), ticket("t", "b", 0)])
    reading = seat.held
    first = next(reading)
    seat.give([ticket("t", "c", 0)])  # in the middle of a scrape by another thread
    seat.take_back(first.number)
    assert [one.purpose.request for one in reading] == ["b"]
    assert [one.purpose.request for one in seat.held] == ["b", "c"]
