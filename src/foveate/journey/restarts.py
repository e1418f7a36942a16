"""Wait, within a bound, for an engine that restarts."""

from __future__ import annotations

import asyncio

from foveate.core.clock import now
from foveate.engines.port import Engine

POLL_SECONDS = 0.02


async def engine_back(engine: Engine, deadline: float, seconds_max: float) -> bool:
    """Wait until the engine is ready again; false when it takes longer than ``seconds_max``."""
    give_up = min(deadline, now() + seconds_max)
    while not engine.ready:
        if now() >= give_up:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
