"""The topology changes while requests run: every one of them is answered rightly, by whatever encodes."""

import asyncio

import pytest
from tests.journeys.asking import BLUE, GREEN, RED, ask, picture, request

from foveate.core.errors import TopologyRefused
from foveate.decisions.scaling import ScaleTerms
from foveate.journey.service import Journey
from foveate.journey.topology import Topologies

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
SAID = {RED: "A red circle.", BLUE: "A blue circle.", GREEN: "A green circle."}


async def test_no_request_fails_when_it_changes(service: Journey) -> None:
    over = asyncio.Event()
    answered = dict.fromkeys(SAID, 0)

    async def client(colour: tuple[int, int, int]) -> None:
        while not over.is_set():
            assert (await ask(service, request(picture(colour)))).text == SAID[colour]
            answered[colour] += 1

    topology = service.topology()
    async with asyncio.TaskGroup() as tasks:
        for colour in SAID:
            tasks.create_task(client(colour))
        for kind, encoders in (("e-pd", 2), ("e-pd", 1), ("agg", 1)):
            report = await topology.set(kind, encoders)
            workers = 0 if kind == "agg" else encoders
            assert (report.kind, report.encoders, len(report.workers)) == (kind, workers, workers)
            assert service.tools.observer.topology == kind
            before = sum(answered.values())
            while sum(answered.values()) < before + 6:
                await asyncio.sleep(0.05)
            if workers:
                assert sum(worker.pictures for worker in topology.report().workers) >= 3
        over.set()
    assert topology.report().workers == ()


async def test_what_is_decided_at_the_start_is_refused(service: Journey) -> None:
    with pytest.raises(TopologyRefused):
        await service.topology().set("e-p-d", 2)


async def test_the_number_follows_the_queue(service: Journey) -> None:
    tools = service.tools
    await service.topology().set("e-pd", 1)
    # A target that every wait exceeds.
    following = Topologies(tools.roll_out, tools.observer, ScaleTerms(1, 2, 1e-6))
    try:
        assert following.report().encoders_max == 2
        while following.report().encoders < 2:
            assert (await ask(service, request(picture(RED)))).text == SAID[RED]
        assert following.report().encoders == 2
        assert tools.metrics.values("foveate_scaling_decisions_total") == {("more",): 1}
    finally:
        await following.aclose()
        await service.topology().set("agg", 1)
