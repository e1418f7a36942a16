"""Whose cache entries a request meets: everybody's by default, with ``per_tenant`` only its own tenant's, in flight or kept."""

import asyncio
import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from PIL import Image
from tests.clips import clip_of
from tests.journeys import test_videos as videos
from tests.journeys.asking import BLUE, RED, ask, by, picture, request, settled
from tests.journeys.origin import content, origin

from foveate.bench.pictures import circle, data_url
from foveate.core.media import DataRef
from foveate.core.request import Request
from foveate.journey.service import Journey

pytestmark = pytest.mark.asyncio(loop_scope="session")


def apart(service: Journey) -> Journey:
    """The same journey with tenants kept apart."""
    limits = replace(service.tools.limits, caches_per_tenant=True)
    return Journey(replace(service.tools, limits=limits), models=service.models)


def palette_picture(*colours: tuple[int, int, int]) -> DataRef:
    """A circle of the second colour on the first: always the same pixel bytes, only the palette differs."""
    mask = circle((0, 0, 0), 224, 255).convert("L").point(lambda value: 1 if value < 128 else 0)
    picture = Image.frombytes("P", mask.size, mask.tobytes())
    picture.putpalette([level for colour in colours for level in colour])
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", bits=8)
    return DataRef(data_url(buffer.getvalue(), "png"))


async def cached(service: Journey, asked: Request) -> bool:
    """Whether an estimate says that the request's first medium is in the encoder cache."""
    return (await service.estimate(asked, None)).items[0].encoder_cached


async def test_by_default_tenants_share(service: Journey) -> None:
    asked = request(picture(RED))
    await ask(service, by(asked, "one"))
    assert await cached(service, by(asked, "other"))
    answered = await ask(service, by(asked, "other"))
    assert answered.text == "A red circle."
    assert "vision_encode" not in answered.timing


@pytest.mark.parametrize(
    "make",
    [lambda: request(picture(RED)), lambda: videos.request(videos.ref(clip_of(videos.circles(RED, BLUE), fps=1)))],
)
async def test_a_tenant_meets_only_its_own_entries(service: Journey, make: Callable[[], Request]) -> None:
    journey, asked = apart(service), make()
    theirs, ours = by(asked, "them"), by(asked, "us")
    await ask(journey, theirs)
    before = journey.tools.encoder_cache.stats()
    estimate = await journey.estimate(ours, None)
    assert (estimate.encoder_cache_hits, estimate.processor_cache_hits) == (0, 0)
    answered = await ask(journey, ours)
    assert {"media_decode", "mm_processor", "vision_encode"} <= answered.timing.keys()
    assert journey.tools.encoder_cache.stats().hits == before.hits
    for mine in (theirs, ours):
        assert await cached(journey, mine)
        assert "vision_encode" not in (await ask(journey, mine)).timing
    await settled(journey)


async def test_work_in_flight_is_joined_by_its_own_tenant_alone(service: Journey) -> None:
    journey, red = apart(service), picture(RED)
    tasks = [
        asyncio.ensure_future(ask(journey, by(request(red), tenant))) for tenant in ("us", "us", "them", "them", "them")
    ]
    most = 0
    while not all(task.done() for task in tasks):
        most = max(most, len(journey.tools.flights))
        await asyncio.sleep(0)
    assert {(await task).text for task in tasks} == {"A red circle."}
    assert most == 2
    await settled(journey)


async def test_a_fetch_is_joined_by_its_own_tenant_alone(service: Journey) -> None:
    async with origin(service, content(picture(RED))) as (serving, journey):
        kept_apart = apart(journey)
        tasks = [
            asyncio.ensure_future(ask(kept_apart, by(request(serving.url()), tenant)))
            for tenant in ("us", "us", "them")
        ]
        while len(kept_apart.tools.fetches) < 2:
            await asyncio.sleep(0.001)
        serving.open.set()
        assert {(await task).text for task in tasks} == {"A red circle."}
        assert serving.asked == 2
    await settled(service)


async def test_equal_pixel_bytes_under_other_palettes_are_other_pictures(service: Journey) -> None:
    red, blue, white = (222, 20, 20), (35, 75, 215), (255, 255, 255)
    for _ in range(2):
        assert (await ask(service, request(palette_picture(white, red)))).text == "A red circle."
        assert (await ask(service, request(palette_picture(white, blue)))).text == "A blue circle."
    await settled(service)
