"""Waiting for whoever encodes."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest

from foveate.core.clock import now
from foveate.engines.port import EngineReport, Role
from foveate.journey.restarts import encoder_back
from foveate.journey.serving import Serving


@dataclass
class PlayedEngine:
    """Processes with their roles, of which some are well."""

    processes: list[tuple[Role, bool]]
    leaving: bool = False

    @property
    def ready(self) -> bool:
        return any(usable for _, usable in self.processes)

    def report(self) -> tuple[EngineReport, ...]:
        return tuple(
            EngineReport(str(at), usable, 0, 0, 0.0, role, draining=self.leaving, leaving=self.leaving)
            for at, (role, usable) in enumerate(self.processes)
        )


@dataclass
class PlayedPool:
    alive: int


def serving(engine: PlayedEngine, pool: PlayedPool | None = None) -> Serving:
    nothing: Any = None
    return Serving(
        "m", nothing, nothing, nothing, nothing, cast(Any, engine), restarts=lambda: 0, stop=nothing,
        encoders=cast(Any, pool),
    )  # fmt: skip


async def comes_back(found: Serving) -> bool:
    return await encoder_back(found, now() + 60, 0.05)


@pytest.mark.parametrize(
    ("processes", "there"),
    [([("pd", True)], True), ([("pd", False)], False), ([("p", True), ("d", False)], True), ([("p", False), ("d", True)], False)],
)  # fmt: skip
async def test_a_process_that_only_decodes_tokens_encodes_nothing(
    processes: list[tuple[Role, bool]], there: bool
) -> None:
    assert await comes_back(serving(PlayedEngine(processes))) == there
    assert await comes_back(serving(PlayedEngine(processes), PlayedPool(0))) == there
    assert await comes_back(serving(PlayedEngine(processes), PlayedPool(1))), "an encode worker does"
    assert await comes_back(serving(PlayedEngine(processes, leaving=True))) == there, "what leaves still encodes"


async def test_it_is_waited_for() -> None:
    engine = PlayedEngine([("p", False), ("d", True)])
    waiting = asyncio.ensure_future(encoder_back(serving(engine, PlayedPool(0)), now() + 60, 30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    engine.processes[0] = ("p", True)
    assert await waiting


async def test_not_past_the_deadline() -> None:
    assert not await encoder_back(serving(PlayedEngine([("pd", False)])), now() + 0.05, 60)
