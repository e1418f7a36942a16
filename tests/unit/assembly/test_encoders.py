"""Where encode workers run, as the settings say."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.unit.engines.played import FakeRuntime

from foveate.assembly.encoders import (
    check_topology,
    crowded,
    dealt,
    encoders_in_memory,
    encoders_of,
    engine_encodes,
    idle,
    threads_each,
)
from foveate.assembly.engines import engines_in_memory
from foveate.core.errors import StartupError
from foveate.models import memory
from foveate.models.files import resolve_model
from foveate.observe.load import Load
from foveate.settings import load


@pytest.mark.parametrize(
    ("cpus", "workers", "found"),
    [
        ((), 2, ()),
        ((2, 3), 1, ((2, 3),)),
        ((2, 3), 2, ((2,), (3,))),
        ((2, 3, 4, 5, 6), 2, ((2, 4, 6), (3, 5))),
        ((2,), 3, ((2,),)),
    ],
)
def test_cores_are_dealt_out_in_turn(cpus: tuple[int, ...], workers: int, found: Any) -> None:
    assert dealt(cpus, workers) == found


def test_workers_share_the_cores_but_one() -> None:
    cores = len(os.sched_getaffinity(0))
    assert threads_each(1) == max(1, cores - 1)
    assert threads_each(64) == 1


def test_workers_with_cores_of_their_own_have_as_many_threads() -> None:
    assert (threads_each(1, (2, 3, 4)), threads_each(2, (2, 3, 4)), threads_each(4, (2, 3))) == (3, 1, 1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"topology.kind": "e-pd", "engine.kind": "upstream"}, "leave out --topology"),
        ({"topology.kind": "e-p-d", "engine.kind": "vllm", "runtime.kind": "ray"}, "on Ray use e-pd"),
        ({"topology.encoder_cpus": "100000"}, "topology.encoder_cpus names the core 100000"),
        ({"engine.cpus": "100000"}, "engine.cpus"),
        ({"topology.encoders": "4", "topology.encoders_max": "2"}, "topology.encoders_max"),
        ({"media.cpus": "100000"}, "media.cpus"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(flags: dict[str, str], said: str) -> None:
    with pytest.raises(StartupError) as refused:
        check_topology(load(flags))
    assert said in refused.value.public


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, []),
        ({"topology.encoders": "3"}, ["encoders"]),
        ({"topology.encoders_max": "3", "topology.prefill": "2"}, ["encoders_max", "prefill"]),
        ({"topology.kind": "e-pd", "topology.encoders": "3", "topology.decode": "2"}, ["decode"]),
        ({"topology.kind": "e-p-d", "topology.encoders": "3", "topology.decode": "2"}, []),
        ({"topology.kind": "e-pd", "topology.target_queue_ms": "50"}, ["target_queue_ms"]),
        ({"topology.kind": "e-pd", "topology.target_queue_ms": "50", "topology.encoders_max": "2"}, []),
    ],
)
def test_numbers_of_processes_that_there_are_none_of_are_told(flags: dict[str, str], names: list[str]) -> None:
    assert [each.partition(" ")[0] for each in idle(load(flags))] == [f"topology.{name}" for name in names]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, []),
        ({"engine.threads": "999"}, ["engine.threads"]),
        ({"topology.encoder_threads": "999", "topology.prefill_threads": "999"}, []),
        ({"topology.kind": "e-pd", "topology.encoder_threads": "2", "topology.encoder_cpus": "0"}, ["topology.encoder_threads"]),
        ({"topology.kind": "e-p-d", "topology.prefill_threads": "999", "engine.threads": "999"}, ["topology.prefill_threads"]),
        ({"runtime.kind": "ray", "engine.threads": "999"}, []),
    ],
)  # fmt: skip
def test_more_threads_than_cores_are_told(flags: dict[str, str], names: list[str]) -> None:
    assert [each.partition(" ")[0] for each in crowded(load(flags))] == names


async def test_no_more_workers_are_started_than_this_machine_has_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, files = load({"topology.kind": "e-pd"}), resolve_model(None)
    runtime: Any = FakeRuntime()
    engine: Any = None  # with --topology e-pd it is asked by nobody before a worker is away
    pool = encoders_of(settings, files, engine, runtime=runtime, number=0, load=Load())
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(StartupError, match=r"Not enough memory for .* in 2 encode workers"):
        await pool.resize(3, drain_seconds_max=0)
    assert (pool.wanted, len(runtime.workers)) == (1, 0)


def test_the_engines_process_holds_a_tower_unless_told_not_to() -> None:
    assert engine_encodes(load({}))
    assert engine_encodes(load({"topology.kind": "e-pd"}))
    assert not engine_encodes(load({"topology.kind": "e-pd", "topology.fallback": "off"}))
    assert engine_encodes(load({"topology.fallback": "off"})), "with agg there is nobody else"


@pytest.mark.parametrize(
    ("flags", "engines", "encoders"),
    [
        ({}, 1, 0),
        ({"engine.count": "3"}, 3, 0),
        ({"topology.kind": "e-pd", "topology.encoders": "2"}, 1, 2),
        ({"topology.kind": "e-pd", "topology.encoders_max": "5"}, 1, 5),
        ({"topology.kind": "e-pd", "topology.encoder_device": "cuda:1"}, 1, 0),
        ({"topology.kind": "e-pd", "model.device": "cuda", "topology.encoder_device": "cpu"}, 0, 1),
        ({"topology.kind": "e-p-d", "topology.decode": "2", "topology.prefill_device": "cuda"}, 2, 1),
        ({"topology.kind": "e-pd", "model.encoder": "package.module:Class"}, 1, 0),
        ({"topology.kind": "e-pd", "runtime.kind": "ray"}, 0, 0),
    ],
)
def test_who_holds_weights_in_main_memory(flags: dict[str, str], engines: int, encoders: int) -> None:
    settings = load(flags)
    assert (engines_in_memory(settings), encoders_in_memory(settings)) == (engines, encoders)


def test_a_new_version_has_as_many_encode_workers_as_there_are_now() -> None:
    assert encoders_in_memory(load({}), 3) == 3
    assert encoders_in_memory(load({"topology.kind": "e-pd", "topology.encoders": "4"}), 0) == 0
