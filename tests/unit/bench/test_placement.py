"""Topologies get the same cores, whatever their number, and flags that the server takes."""

import os

import pytest

from foveate.bench.placement import TOPOLOGIES, Placement, albums, confined, place, topology_flags
from foveate.settings import load


@pytest.mark.parametrize("count", range(1, 17))
def test_every_topology_has_all_cores(count: int) -> None:
    cores = range(100, 100 + count)
    placement = place(cores)
    assert placement.cores == tuple(cores)
    assert placement.separate == (count > 2)
    for kind in TOPOLOGIES:
        told = topology_flags(kind, placement)
        pairs = dict(zip(told[::2], told[1::2], strict=True))
        named = {int(core) for flag, value in pairs.items() if flag.endswith("-cpus") for core in value.split(",")}
        assert named == set(cores)


def test_parts_of_a_large_machine() -> None:
    assert place(range(8)) == Placement((0, 1), (2, 3, 4), (5, 6, 7))
    told = topology_flags("e-p-d", place(range(8)))
    assert told[told.index("--topology-prefill-cpus") + 1] == "5,6"
    assert told[told.index("--topology-decode-cpus") + 1] == "7"


def test_one_and_two_encode_workers_differ_in_nothing_else() -> None:
    assert albums(range(4)) == (Placement((0,), (3,), (1,)), Placement((0,), (2, 3), (1,)))
    assert albums(range(3)) == (Placement((0,), (2,), (0,)), Placement((0,), (1, 2), (0,)))
    assert [placement.separate for placement in albums(range(2))] == [True, False]


def test_the_settings_know_them() -> None:
    core = min(os.sched_getaffinity(0))
    told = topology_flags("e-p-d", place([core]))
    short = {"--topology": "topology.kind", "--encoders": "topology.encoders"}
    flags = {
        short.get(flag, flag[2:].replace("-", ".", 1).replace("-", "_")): value
        for flag, value in zip(told[::2], told[1::2], strict=True)
    }
    topology = load(flags).topology
    assert (topology.kind, topology.fallback) == ("e-p-d", "off")
    assert topology.encoder_cpus == topology.prefill_cpus == topology.decode_cpus == (core,)


def test_confinement_ends() -> None:
    before = os.sched_getaffinity(0)
    with confined([min(before)]):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
