"""What the embedded engine's client does beside any engine's: a prompt that is handed on, against a worker that the test plays."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tests.unit.engines.bench import Bench, late
from tests.unit.engines.played import BUNDLE

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EngineDied, QueueFull
from foveate.core.memory import Slot
from foveate.core.request import Sampling
from foveate.engines.arrivals import Arrivals
from foveate.engines.embedded.messages import Prefill, Prefilled, SlotFree
from foveate.engines.messages import Cancel, PictureReady
from foveate.engines.port import EngineWork, FailEvent

OUT = Slot(1024, 4096)


class Place:
    """Where a prompt's K/V may go, when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.granted = asyncio.Event()

    async def slot(self) -> Slot:
        self.asked += 1
        await self.granted.wait()
        return OUT


async def test_a_prompt_that_is_handed_on_asks_for_its_place_when_its_pictures_are_there(bench: Bench) -> None:
    work = EngineWork("r", [1], late(True, False, False), Sampling(5), now() + 60)
    arrivals, place, whole = Arrivals({1, 2}), Place(), late(True, True, True)
    asked = asyncio.ensure_future(bench.engine.prefill(work, place.slot, submitted_at=1.0, arrivals=arrivals))
    assert await bench.worker.sent.get() == Prefill(work, 1.0, None)
    arrivals.put(2, whole[2])
    assert await bench.worker.sent.get() == PictureReady("r", 2, whole[2])
    assert place.asked == 0
    arrivals.put(1, whole[1])
    await asyncio.sleep(0.01)
    assert (place.asked, bench.worker.sent.empty()) == (1, True)
    place.granted.set()
    assert await bench.worker.sent.get() == PictureReady("r", 1, whole[1], OUT)
    done = Prefilled("r", BUNDLE, 5, 0.0, 0.0, 0, 0.0)
    bench.worker.say(done)
    assert await asked == done


@pytest.mark.parametrize("end", ["cancelled", "failed", "died", "out of time"])
@pytest.mark.parametrize("all_there", [False, True])
async def test_a_prompt_that_is_handed_on_ends_whatever_it_waits_for(bench: Bench, end: str, all_there: bool) -> None:
    seconds = 0.2 if end == "out of time" else 60
    work = EngineWork("r", [1], late(True, False), Sampling(5), now() + seconds)
    arrivals, place = Arrivals({1}), Place()
    asked = asyncio.ensure_future(bench.engine.prefill(work, place.slot, submitted_at=1.0, arrivals=arrivals))
    await bench.worker.sent.get()
    if all_there:
        arrivals.put(1, late(True, True)[1])
        await asyncio.sleep(0)
    if all_there and end in ("failed", "died", "out of time"):
        place.granted.set()  # who waits for room hears of nothing else before
        await bench.worker.sent.get()
    if end == "cancelled":
        asked.cancel()
    elif end == "failed":
        bench.worker.say(FailEvent("r", QueueFull(detail="full").record()))
    elif end == "died":
        bench.worker.kill()
    if end in ("cancelled", "out of time"):
        assert await bench.worker.sent.get() == Cancel("r")
        assert not asked.done(), "its pictures' slots may be read until the process says otherwise"
    if end != "died":
        bench.worker.say(SlotFree("r"))
    expected = {"cancelled": asyncio.CancelledError, "failed": QueueFull, "died": EngineDied}
    with pytest.raises(expected.get(end, DeadlineExceeded)):
        await asked


async def test_a_death_that_nobody_waits_for_any_more_is_not_reported_as_forgotten(bench: Bench) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    work = EngineWork("r", [1], [], Sampling(5), now() + 60)
    place = Place()
    place.granted.set()
    asked = asyncio.ensure_future(bench.engine.prefill(work, place.slot, submitted_at=1.0, arrivals=Arrivals(set())))
    await bench.worker.sent.get()
    asked.cancel()
    assert await bench.worker.sent.get() == Cancel("r")
    bench.worker.kill()
    await asyncio.wait({asked})
    assert asked.cancelled()
    del asked  # and with it the frames that know the future
    gc.collect()
    assert told == []
