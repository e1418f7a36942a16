"""What an operator's change of the topology does, in what order, and what is refused: over versions that the test plays."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from foveate.core.errors import StartupError, TopologyRefused
from foveate.encoders.pool import EncoderPool
from foveate.encoders.seat import EncoderReport
from foveate.engines.port import EngineReport, Role
from foveate.journey.roll_out import RollOut
from foveate.journey.serving import Serving
from foveate.journey.topology import Topologies
from foveate.observe.metrics import Metrics
from foveate.observe.observer import Observer
from foveate.observe.records import Topology


class PlayedEngine:
    """An engine with roles; encoding is told by ``fallback`` as the settings would."""

    def __init__(self, done: list[Any], topology: Topology = "agg", fallback: str = "local") -> None:
        self.done = done
        self.topology: Topology = topology
        self.fallback = fallback
        self.roles: list[Role] = ["p", "d"] if topology == "e-p-d" else ["pd"]
        self.refusal: Exception | None = None
        self.refuses: Topology = "e-p-d"

    @property
    def encodes(self) -> bool:
        return self.topology == "agg" or self.fallback == "local"

    def count(self, role: Role) -> int:
        return self.roles.count(role)

    def report(self) -> tuple[EngineReport, ...]:
        return tuple(EngineReport(str(at), True, 0, 0, 0.0, role=role) for at, role in enumerate(self.roles))

    async def change(self, topology: Topology, *, prefill: int | None = None, decode: int | None = None) -> None:
        await asyncio.sleep(0)
        self.done.append(("engine", topology, prefill, decode))
        if self.refusal is not None and topology == self.refuses:
            raise self.refusal
        self.topology = topology
        split: list[Role] = [*(["p"] * (prefill or 1)), *(["d"] * (decode or 1))]  # type: ignore[list-item]
        self.roles = split if topology == "e-p-d" else ["pd"]


class PlayedPool:
    """Encode workers that are counted."""

    waiting = local_pictures = 0

    def __init__(self, done: list[Any], wanted: int = 0, *, steps_in: bool = True) -> None:
        self.done, self.wanted, self.encodes_locally = done, wanted, steps_in

    def step_in(self, allowed: bool) -> None:
        self.encodes_locally = allowed

    def report(self) -> tuple[EncoderReport, ...]:
        return ()

    async def resize(self, workers: int, *, drain_seconds_max: float) -> None:
        await asyncio.sleep(0)
        assert workers or self.encodes_locally, "somebody has to encode"
        self.done.append(("encoders", workers))
        self.wanted = workers


class Bench:
    """One version that serves, in the topology that the server was started in."""

    def __init__(self, topology: Topology = "agg", *, fallback: str = "local", roles: bool = True) -> None:
        self.done: list[Any] = []
        self.engine = PlayedEngine(self.done, topology, fallback)
        workers = 0 if topology == "agg" else 1
        self.pool = PlayedPool(self.done, workers, steps_in=self.engine.encodes)
        self.roll_out = RollOut(self.serving(self.engine, self.pool, roles=roles))
        self.observer = Observer(Metrics(), None, topology=topology)
        self.topologies = Topologies(self.roll_out, self.observer, encoders=4)

    def serving(self, engine: PlayedEngine, pool: PlayedPool, *, roles: bool = True) -> Serving:
        given: Any = engine
        nothing: Any = None
        return Serving(
            "m", nothing, nothing, nothing, nothing, given, restarts=lambda: 0, stop=nothing,
            encoders=cast(EncoderPool, pool), roles=given if roles else None,
        )  # fmt: skip


KINDS: tuple[Topology, ...] = ("agg", "e-pd", "e-p-d")


@pytest.mark.parametrize("fallback", ["local", "off"])
async def test_any_topology_becomes_any_other(fallback: str) -> None:
    bench = Bench(fallback=fallback)
    for kind in (*KINDS, *KINDS[::-1], "e-p-d", "agg", "e-pd", "agg"):
        found = await bench.topologies.set(kind, 2)
        assert (found.kind, found.encoders) == (kind, 0 if kind == "agg" else 2)
        assert (found.prefill, found.decode) == ((1, 1) if kind == "e-p-d" else (0, 0))
        assert bench.observer.topology == kind
        assert found.local == (kind == "agg" or fallback == "local")


async def test_without_a_number_there_are_as_many_encode_workers_as_there_were_or_as_were_configured() -> None:
    bench = Bench()
    assert (await bench.topologies.set("e-pd")).encoders == 4, "as configured"
    await bench.topologies.set("e-pd", 3)
    assert (await bench.topologies.set("e-p-d")).encoders == 3, "as there are"
    await bench.topologies.set("agg")
    assert (await bench.topologies.set("e-pd")).encoders == 4


async def test_who_is_to_encode_comes_first_and_who_encoded_goes_last() -> None:
    bench = Bench(fallback="off")
    await bench.topologies.set("e-p-d", 3, prefill=1, decode=2)
    await bench.topologies.set("agg", 1)
    assert bench.done == [("encoders", 3), ("engine", "e-p-d", 1, 2), ("engine", "agg", None, None), ("encoders", 0)]


async def test_what_cannot_start_leaves_what_there_was() -> None:
    bench = Bench()
    bench.engine.refusal = StartupError("Not enough memory.")
    with pytest.raises(TopologyRefused) as refused:
        await bench.topologies.set("e-p-d", 2)
    assert refused.value.public == "Processes cannot start: Not enough memory."
    assert (bench.pool.wanted, bench.engine.topology, bench.observer.topology) == (0, "agg", "agg")
    assert bench.topologies.report().kind == "agg"
    bench.engine.refusal = OSError(24, "Too many open files")
    with pytest.raises(TopologyRefused) as refused:
        await bench.topologies.set("e-p-d", 2)
    assert refused.value.public == "Processes cannot start: Too many open files."


async def test_a_version_on_trial_is_changed_too_and_both_or_none() -> None:
    bench = Bench()
    other = PlayedEngine(bench.done)
    new = bench.serving(other, PlayedPool(bench.done))
    bench.roll_out.trial = cast(Any, type("Trial", (), {"new": new}))
    bench.roll_out.retiring.append(bench.serving(PlayedEngine([]), PlayedPool([])))
    await bench.topologies.set("e-p-d", 1, prefill=2)
    assert other.roles == bench.engine.roles == ["p", "p", "d"]
    assert bench.roll_out.retiring[0].encoders.wanted == 0, "it ends with what it began"  # type: ignore[union-attr]
    await bench.topologies.set("agg", 1)
    other.refusal = StartupError("Not enough memory.")
    with pytest.raises(TopologyRefused):
        await bench.topologies.set("e-p-d", 1)
    assert (bench.engine.topology, other.topology) == ("agg", "agg")


async def test_a_version_that_ends_during_a_change_does_not_hold_the_others_back() -> None:
    bench = Bench()
    gone = PlayedEngine(bench.done)
    bench.roll_out.trial = cast(Any, type("Trial", (), {"new": bench.serving(gone, PlayedPool(bench.done))}))

    async def ended(topology: Topology, **numbers: Any) -> None:
        bench.roll_out.trial = None  # it was rolled back
        raise StartupError("The engine has been stopped.")

    gone.change = ended  # type: ignore[method-assign]
    await bench.topologies.set("e-p-d", 1)
    assert bench.topologies.report().kind == bench.engine.topology == "e-p-d"


async def test_a_version_that_ends_before_its_turn_is_left_as_it_is() -> None:
    bench = Bench()
    gone = bench.serving(PlayedEngine(bench.done), PlayedPool(bench.done))
    bench.roll_out.trial = cast(Any, type("Trial", (), {"new": gone}))
    change = bench.engine.change

    async def changed(topology: Topology, **numbers: Any) -> None:
        await change(topology, **numbers)
        bench.roll_out.trial = None
        bench.roll_out.retiring.append(gone)

    bench.engine.change = changed  # type: ignore[method-assign]
    await bench.topologies.set("e-pd", 2)
    assert gone.encoders is not None
    assert gone.encoders.wanted == 0


async def test_one_that_cannot_go_back_keeps_no_other_from_it_and_hides_no_reason() -> None:
    bench = Bench()
    other = PlayedEngine(bench.done)
    bench.roll_out.trial = cast(Any, type("Trial", (), {"new": bench.serving(other, PlayedPool(bench.done))}))
    await bench.topologies.set("e-pd", 1)
    first, second = (one.roles for one in bench.roll_out.all)
    assert isinstance(first, PlayedEngine)
    assert isinstance(second, PlayedEngine)
    first.refuses, first.refusal = "e-pd", StartupError("No way back.")
    second.refusal = StartupError("Not enough memory.")
    bench.done.clear()
    with pytest.raises(TopologyRefused, match="Not enough memory"):
        await bench.topologies.set("e-p-d", 1)
    assert [one[1] for one in bench.done if one[0] == "engine"] == ["e-p-d", "e-p-d", "e-pd", "e-pd"]
    assert bench.topologies.report().kind == "e-pd"


@pytest.mark.parametrize(
    ("started", "kind", "fallback", "said"),
    [
        ("agg", "e-p-d", "local", "--topology e-p-d"),
        ("e-pd", "e-p-d", "local", "--topology e-p-d"),
        ("e-p-d", "agg", "local", "--topology agg"),
        ("e-p-d", "e-pd", "local", "--topology e-pd"),
        ("e-pd", "agg", "off", "topology.fallback"),
    ],
)
async def test_roles_that_are_fixed_when_a_process_starts(
    started: Topology, kind: Topology, fallback: str, said: str
) -> None:
    bench = Bench(started, fallback=fallback, roles=False)
    with pytest.raises(TopologyRefused, match=said):
        await bench.topologies.set(kind, 1)
    with pytest.raises(TopologyRefused, match=r"Restart the server with --topology e-p-d --decode-workers 2\."):
        await bench.topologies.set("e-p-d", 1, decode=2)
    assert bench.done == []
    await bench.topologies.set(started, 2)
    assert bench.done == ([("encoders", 0)] if started == "agg" else [("encoders", 2)])


async def test_not_while_a_version_is_loading() -> None:
    bench = Bench()
    bench.roll_out.loading = True
    with pytest.raises(TopologyRefused, match="is loading"):
        await bench.topologies.set("e-pd", 1)
    bench.roll_out.loading = False
    change = asyncio.ensure_future(bench.topologies.set("e-pd", 1))
    await asyncio.sleep(0)
    assert bench.roll_out.topology_changes, "so that none begins to load meanwhile"
    await change
    await asyncio.sleep(0)
    assert not bench.roll_out.topology_changes
