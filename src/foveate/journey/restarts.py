"""Wait, within a bound, for an engine that restarts, or for whoever encodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from foveate.core.clock import now
from foveate.engines.port import Engine
from foveate.journey.serving import Serving

POLL_SECONDS = 0.02


async def engine_back(engine: Engine, deadline: float, seconds_max: float) -> bool:
    """Wait until the engine is ready again; false when it takes longer than ``seconds_max``."""
    return await _until(lambda: engine.ready, deadline, seconds_max)


async def encoder_back(serving: Serving, deadline: float, seconds_max: float) -> bool:
    """Likewise for an encode worker, or a process of the engine that may encode: with ``e-p-d`` those that are ready may be others."""

    def ready() -> bool:
        if serving.encoders is not None and serving.encoders.alive:
            return True
        engines = serving.engine.report() if serving.engine.ready else ()
        return any(one.usable and one.role != "d" and (one.leaving or not one.draining) for one in engines)

    return await _until(ready, deadline, seconds_max)


async def _until(ready: Callable[[], bool], deadline: float, seconds_max: float) -> bool:
    give_up = min(deadline, now() + seconds_max)
    while not ready():
        if now() >= give_up:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
