"""Which processes of an embedded engine there are in each topology, and where each runs."""

from __future__ import annotations

import os

import pytest
from tests.unit.engines.played import FakeRuntime

from foveate.assembly.encoders import threads_each
from foveate.assembly.supply import EmbeddedSupply, Shared
from foveate.core.errors import StartupError
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.engines.embedded.places import Place
from foveate.models.files import DEMO_DIRECTORY
from foveate.observe.load import Load
from foveate.observe.records import Topology
from foveate.runtime.arena import Arena
from foveate.settings import load


class PlayedRuntime(FakeRuntime):
    arena = Arena(1 << 20, apart_bytes=1 << 20)


def supply(**flags: str) -> EmbeddedSupply:
    settings = load({name.replace("__", "."): value for name, value in flags.items()})
    config = EmbeddedConfig(str(DEMO_DIRECTORY), "m", device=settings.model.device)
    shared = Shared(settings, PlayedRuntime(), Load(), lambda text: None)  # type: ignore[arg-type]
    return EmbeddedSupply(settings, config, shared)


def told(places: list[Place]) -> list[tuple[str, bool]]:
    return [(place.role, place.config.encoder) for place in places]


@pytest.mark.parametrize(
    ("topology", "numbers", "fallback", "found"),
    [
        ("agg", (None, None), "local", [("pd", True)] * 2),
        ("e-pd", (None, None), "local", [("pd", True)] * 2),
        ("e-pd", (None, None), "off", [("pd", False)] * 2),
        ("agg", (None, None), "off", [("pd", True)] * 2),
        ("e-p-d", (None, None), "local", [("p", True), ("d", False), ("d", False)]),
        ("e-p-d", (2, 1), "local", [("p", True), ("p", True), ("d", False)]),
        ("e-p-d", (1, 1), "off", [("p", False), ("d", False)]),
    ],
)
def test_roles_and_vision_towers(
    topology: Topology, numbers: tuple[int | None, int | None], fallback: str, found: list[tuple[str, bool]]
) -> None:
    made = supply(engine__count="2", topology__decode="2", topology__fallback=fallback)
    assert told(made.places(topology, *numbers)) == found


def test_a_role_of_its_own_place_needs_a_process_of_its_own() -> None:
    """Without any, whoever answers whole requests can prefill; with threads or a device set, not."""
    (whole,) = supply(engine__threads="1").places("agg", None, None)
    alike, _ = supply(topology__prefill_threads="1").places("e-p-d", None, None)
    assert whole.fits(alike)
    for flags in ({"topology__prefill_threads": "2"}, {"topology__prefill_device": "cuda:1"}):
        other, _ = supply(**flags).places("e-p-d", None, None)
        assert not whole.fits(other)


def test_more_workers_change_nothing_for_the_others() -> None:
    cores = sorted(os.sched_getaffinity(0))
    made = supply(topology__prefill_cpus=str(cores[0]), topology__decode_cpus=str(cores[-1]))
    before, more = made.places("e-p-d", 1, 1), made.places("e-p-d", 2, 3)
    assert before[0] == more[0] == more[1]
    assert before[1] == more[2] == more[4]
    assert {place.threads for place in more} == {1}, "each has one core"
    assert {place.threads for place in supply().places("e-p-d", 2, 3)} == {threads_each(2)}
    assert (more[0].cpus, more[2].cpus) == ((cores[0],), (cores[-1],))


def test_on_a_cluster_a_role_is_placed_by_its_needs() -> None:
    here, there = supply(), supply(runtime__kind="ray")
    assert [place.needs for place in here.places("e-p-d", 1, 1)] == ["", ""]
    assert [place.needs for place in there.places("e-p-d", 1, 1)] == ["prefill", "decode"]
    assert [place.needs for place in there.places("agg", None, None)] == ["engine"]


def test_numbers_are_taken_again_when_their_processes_have_ended() -> None:
    made = supply(engine__count="3")
    engines = [made.make(place) for place in made.places("agg", None, None)]
    assert [engine.index for engine in engines] == [0, 1, 2]
    made.gone(engines[1])
    made.gone(engines[1])
    assert [made.make(place).index for place in made.places("agg", None, None)] == [1, 3, 4]


async def test_processes_that_this_machine_has_no_memory_for_are_not_started() -> None:
    made = supply(topology__decode_device="cuda")
    prefill, decode = made.places("e-p-d", 1, 1)
    await made.check_room([prefill, *[decode] * 10**6])
    with pytest.raises(StartupError, match="Not enough memory"):
        await made.check_room([prefill] * 10**6)
