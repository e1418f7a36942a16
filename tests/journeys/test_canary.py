"""A new version of the model beside the one that serves, with real engines: who meets it, what is compared, how it ends."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.journeys.asking import RED, Answered, ask, picture, request
from tests.journeys.versions import red_for_blue

from foveate.assembly import journey
from foveate.journey.service import Journey
from foveate.settings import load

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tried() -> AsyncIterator[Journey]:
    """A server of this module's own, on which versions come and go."""
    flags = {
        "log.requests": "off",
        "media.workers": "1",
        "engine.threads": "1",
        "canary.compared_share": "1",
        "canary.samples_min": "3",
        "canary.cosine_min": "-1",
        "canary.latency_ratio_max": "1000",
    }
    async with journey(load(flags), say=lambda text: None) as built:
        yield built


async def met(service: Journey, answered: Answered) -> str:
    """Which version answered about a red circle."""
    return {"A red circle.": "stable", "A blue circle.": "canary"}[answered.text]


async def test_a_share_of_contents_meets_the_new_version_and_always_the_same(tried: Journey, tmp_path: Path) -> None:
    canary = tried.canary()
    report = await canary.start(str(red_for_blue(tmp_path / "new")), share=0.0, warm=0)
    assert report.state == "on_trial"
    pictures = [picture(RED) for _ in range(12)]

    async def meet() -> list[str]:
        return [await met(tried, await ask(tried, request(each))) for each in pictures]

    assert await meet() == ["stable"] * 12
    canary.set_share(0.5)
    half = await meet()
    assert set(half) == {"stable", "canary"}
    assert await meet() == half  # sticky, from either version's cache
    canary.set_share(1.0)
    assert await meet() == ["canary"] * 12
    canary.set_share(0.5)
    assert await meet() == half
    await canary.rollback()
    assert await meet() == ["stable"] * 12
