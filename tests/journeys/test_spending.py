"""What a request takes is measured where it is taken, and counted for who caused it."""

import asyncio

import pytest
from tests.clips import clip
from tests.journeys.asking import GREEN, ask, numbers, picture, request, settled
from tests.journeys.house import with_tools
from tests.journeys.origin import content, origin
from tests.journeys.test_videos import ref
from tests.journeys.test_videos import request as video_request

from foveate.core.request import Request
from foveate.journey.service import Journey
from foveate.observe.metrics import Metrics
from foveate.observe.observer import Observer
from foveate.observe.request_line import RequestLine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def taken(service: Journey, *asked: Request) -> list[RequestLine]:
    """Ask all of these at once; return what each took, as the log has it."""
    observer = Observer(Metrics(), None)
    watched = with_tools(service, observer=observer)
    await asyncio.gather(*(ask(watched, each) for each in asked))
    await settled(service)
    lines = [observer.costs.recent(each.id) for each in asked]
    assert None not in lines
    return [line for line in lines if line is not None]


async def test_the_first_pays_for_a_picture_and_the_next_is_told_what_it_was_spared(service: Journey) -> None:
    new = picture(GREEN, size=400)
    (first,), (again,) = await taken(service, request(new)), await taken(service, request(new))
    assert min(first.media_cpu_ms, first.processor_cpu_ms, first.encoder_ms, first.engine_token_ms) > 0
    assert (first.cache_saved_ms, first.items[0].found, first.fetch_bytes) == (0, None, 0)
    assert first.encoder_ms <= (first.vision_encode_ms or 0) + 0.01, "alone in its batch, it is the batch"
    assert (again.media_cpu_ms, again.processor_cpu_ms, again.encoder_ms) == (0, 0, 0)
    assert again.items[0].found == "encoder_cache"
    assert again.cache_saved_ms >= first.encoder_ms
    assert again.engine_token_ms > 0


async def test_work_in_flight_is_paid_for_once(service: Journey) -> None:
    new = picture(GREEN, size=600)
    lines = await taken(service, *(request(new) for _ in range(3)))
    assert [line.encoder_ms > 0 for line in lines].count(True) == 1
    assert [line.items[0].found for line in lines].count("in_flight") == 2
    assert all(line.cache_saved_ms > 0 for line in lines if line.items[0].found)


async def test_bytes_of_a_fetch_belong_to_who_fetched(service: Journey) -> None:
    data = content(picture(GREEN))
    async with origin(service, data) as (web, journey):
        web.open.set()
        (line,) = await taken(journey, request(web.url(), web.url()))
    assert line.fetch_bytes == len(data), "asked for twice, fetched once"
    assert sorted(item.fetch_bytes or 0 for item in line.items) == [0, len(data)]


async def test_a_video_s_frames_add_up(service: Journey) -> None:
    (line,) = await taken(
        service, video_request(ref(clip([(next(numbers) % 256, 5, shade) for shade in (0, 90, 180)])))
    )
    assert line.media_cpu_ms > 0
    assert line.encoder_ms > 0
    assert line.items[0].encoder_ms == line.encoder_ms


async def test_a_longer_answer_takes_more_of_the_engine(service: Journey) -> None:
    (short,), (long,) = (
        await taken(service, request(text="Hello!", tokens=1)),
        await taken(service, request(text="Describe a red circle and a blue star, please.", tokens=24)),
    )
    assert short.engine_token_ms > 0
    assert short.output_tokens < long.output_tokens
    assert short.engine_token_ms < long.engine_token_ms
