"""What a request asks of the picture processor: within the budget, in the price, and part of the key."""

import msgspec
import pytest
from tests.journeys.asking import RED, ask, by, picture, request, settled
from tests.journeys.house import nothing_held

from foveate.core.errors import ImageTooLarge, InvalidParameter
from foveate.core.media import ProcessorOptions
from foveate.core.request import Request
from foveate.journey.service import Journey

pytestmark = pytest.mark.asyncio(loop_scope="session")

LARGE, SMALL = ProcessorOptions(min_pixels=100_000), ProcessorOptions(max_pixels=20_000)


def asking(asked: Request, processor: ProcessorOptions) -> Request:
    return msgspec.structs.replace(asked, processor=processor)


async def test_equal_bytes_under_other_options_are_other_entries(service: Journey) -> None:
    ref = picture(RED)
    tokens = []
    for processor in (ProcessorOptions(), LARGE, SMALL):
        asked = asking(request(ref), processor)
        estimate = await service.estimate(asked, None)
        assert (estimate.encoder_cache_hits, estimate.processor_cache_hits) == (0, 0)
        answered = await ask(service, asked)
        assert "vision_encode" in answered.timing
        assert answered.visual_tokens == estimate.visual_tokens
        assert answered.text == "A red circle."
        tokens.append(answered.visual_tokens)
    assert tokens[2] < tokens[0] < tokens[1]
    for processor, visual_tokens in zip((ProcessorOptions(), LARGE, SMALL), tokens, strict=True):
        again = await ask(service, asking(request(ref), processor))
        assert again.visual_tokens == visual_tokens
        assert "vision_encode" not in again.timing
    await settled(service)


async def test_options_that_change_nothing_meet_the_same_entry(service: Journey) -> None:
    ref = picture(RED)
    await ask(service, request(ref))
    limit = (await refused(service, ProcessorOptions(max_pixels=10**9))).limit
    assert limit is not None
    again = await ask(service, asking(request(ref), ProcessorOptions(max_pixels=int(limit))))
    assert "vision_encode" not in again.timing
    await settled(service)


async def refused(service: Journey, processor: ProcessorOptions) -> InvalidParameter:
    with pytest.raises(InvalidParameter) as caught:
        await ask(service, asking(request(picture(RED)), processor))
    return caught.value


async def test_the_budget_holds_whatever_is_asked(service: Journey) -> None:
    asked = by(asking(request(picture(RED)), LARGE), max_image_pixels=60_000)
    estimate = await service.estimate(asked, None)
    assert [(refusal.code, refusal.limit_name) for refusal in estimate.refusals] == [
        ("image_too_large", "max_image_pixels")
    ]
    with pytest.raises(ImageTooLarge) as caught:
        await ask(service, asked)
    assert (caught.value.limit_name, caught.value.limit, caught.value.actual) == ("max_image_pixels", 60_000, 100_000)
    assert caught.value.param == "mm_processor_kwargs"
    tokens = by(asking(request(picture(RED)), LARGE), max_visual_tokens=70)
    assert [refusal.limit_name for refusal in (await service.estimate(tokens, None)).refusals] == ["max_visual_tokens"]
    assert (await service.estimate(by(request(picture(RED)), max_visual_tokens=70), None)).admitted
    await settled(service)
    assert nothing_held(service)


async def test_what_the_model_does_not_allow_is_refused_without_media_too(service: Journey) -> None:
    with pytest.raises(InvalidParameter):
        await ask(service, asking(request(), ProcessorOptions(max_pixels=10**9)))
    estimate = await service.estimate(asking(request(), ProcessorOptions(max_pixels=10**9)), None)
    assert [refusal.param for refusal in estimate.refusals] == ["mm_processor_kwargs.max_pixels"]
