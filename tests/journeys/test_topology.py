"""The topology changes while requests run: every one of them is answered rightly, by whatever encodes."""

import asyncio

import pytest
from tests.journeys.asking import BLUE, GREEN, RED, ask, picture, request

from foveate.core.errors import TopologyRefused
from foveate.decisions.scaling import ScaleTerms
from foveate.journey.service import Journey
from foveate.journey.topology import Topologies
from foveate.observe.records import Topology

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
SAID = {RED: "A red circle.", BLUE: "A blue circle.", GREEN: "A green circle."}
STEPS: tuple[tuple[Topology, int, int | None, int | None], ...] = (
    ("e-pd", 2, None, None),
    ("e-p-d", 1, None, None),
    ("e-p-d", 1, 1, 2),
    ("e-pd", 1, None, None),
    ("e-p-d", 1, 1, 1),
    ("agg", 1, None, None),
)


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
        for kind, encoders, prefill, decode in STEPS:
            report = await topology.set(kind, encoders, prefill=prefill, decode=decode)
            workers = 0 if kind == "agg" else encoders
            assert (report.kind, report.encoders, len(report.workers)) == (kind, workers, workers)
            roles = [one.role for one in report.engines if not one.leaving]
            assert roles == (["p"] + ["d"] * (decode or 1) if kind == "e-p-d" else ["pd"])
            assert (report.prefill, report.decode) == (roles.count("p"), roles.count("d"))
            assert service.tools.observer.topology == kind
            before = sum(answered.values())
            while sum(answered.values()) < before + 6:
                await asyncio.sleep(0.05)
        over.set()
    while any(one.leaving for one in topology.report().engines):
        await asyncio.sleep(0.05)
    assert topology.report().workers == ()
    assert len(topology.report().engines) == 1
    assert service.tools.metrics.values("foveate_kv_handed_on_total")[()] > 0
    assert service.tools.metrics.values("foveate_kv_room_used_bytes")[()] == 0


async def test_numbers_without_their_roles_are_refused(service: Journey) -> None:
    with pytest.raises(TopologyRefused, match="Only with e-p-d"):
        await service.topology().set("e-pd", 1, decode=2)
    assert service.topology().report().kind == "agg"


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
