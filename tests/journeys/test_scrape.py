"""The exposition of a whole service."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from foveate.journey.service import Journey
from foveate.observe.metrics import Metrics


async def test_what_waits_for_a_driver_does_not_hold_the_loop(service: Journey) -> None:
    metrics, let_go = Metrics(), threading.Event()
    metrics.bind("foveate_gpu_utilisation", lambda: {"0": float(let_go.wait(30))}, waits=True)
    scraped = asyncio.ensure_future(Journey(replace(service.tools, metrics=metrics), models=("m",)).metrics())
    await asyncio.sleep(0)
    let_go.set()
    assert b'foveate_gpu_utilisation{gpu="0"} 1.0\n' in (await scraped)[0]


async def test_a_service_tells_of_itself(service: Journey) -> None:
    body, content_type = await service.metrics()
    assert content_type.startswith("text/plain")
    assert b"foveate_engine_ready" in body
