"""Wait, within a bound, for an engine that restarts."""

from __future__ import annotations

import asyncio

from foveate.core.clock import now
from foveate.journey.tools import Tools

POLL_SECONDS = 0.02


async def engine_back(tools: Tools, deadline: float) -> bool:
    """Wait until the engine is ready again; false when it takes longer than a request without a token should be kept waiting."""
    give_up = min(deadline, now() + tools.limits.engine_wait_seconds)
    while not tools.engine.ready:
        if now() >= give_up:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
