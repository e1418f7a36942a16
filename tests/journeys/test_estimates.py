"""Estimates: the price that a request then has, every refusal at once, and no trace in caches, names or accounts."""

import asyncio
import base64

import msgspec
import pytest
from tests.clips import RED as CLIP_RED
from tests.clips import clip
from tests.journeys import test_videos as videos
from tests.journeys.asking import BLUE, GREEN, RED, ask, by, picture, request, settled
from tests.journeys.house import decodes_begun, house, nothing_held, with_tools
from tests.journeys.origin import content, origin

from foveate.core.budget import Caller
from foveate.core.errors import Draining, HouseFull
from foveate.core.media import DataRef, UrlRef
from foveate.core.request import Request, VideoPart
from foveate.journey.port import Estimate
from foveate.journey.service import Journey
from foveate.observe.observer import Observer
from foveate.observe.records import LedgerRecord

pytestmark = pytest.mark.asyncio(loop_scope="session")


def codes(estimate: Estimate) -> list[tuple[str, str | None, int | None]]:
    """What an estimate refuses with: code, limit and medium."""
    return [(refusal.code, refusal.limit_name, refusal.part) for refusal in estimate.refusals]


def inline(data: bytes) -> DataRef:
    return DataRef("data:image/png;base64," + base64.b64encode(data).decode())


async def test_an_estimate_tells_what_the_request_then_costs_and_touches_nothing(service: Journey) -> None:
    asked = request(picture(RED, 205), picture(BLUE, 205, size=448), text="Describe both images.")
    caches = service.tools.processor_cache, service.tools.encoder_cache
    before = [cache.stats() for cache in caches]
    estimate = await service.estimate(asked, None)
    assert [cache.stats() for cache in caches] == before
    assert nothing_held(service)
    answered = await ask(service, asked)
    assert (estimate.admitted, estimate.refusals, estimate.adjustments) == (True, (), ())
    assert estimate.visual_tokens == answered.visual_tokens
    sizes = [len(content(part.ref)) for part in asked.images]  # type: ignore[arg-type]
    assert (estimate.bytes, estimate.pixels, estimate.frames) == (sum(sizes), 224 * 224 + 448 * 448, 0)
    first, second = estimate.items
    assert (first.part, first.param, first.kind, first.bytes) == (0, asked.images[0].param, "image", sizes[0])
    assert (second.width, second.height, second.pixels, second.visual_tokens) == (448, 448, 448 * 448, 144)
    assert (estimate.encoder_cache_hits, estimate.processor_cache_hits) == (0, 0)
    again = await service.estimate(asked, None)
    assert again.encoder_cache_hits == 2
    assert all(item.encoder_cached for item in again.items)
    assert again.text_tokens == estimate.text_tokens > 0
    await settled(service)


async def test_a_text_s_estimate_counts_its_tokens(service: Journey) -> None:
    asked = request(text="Hello!")
    estimate = await service.estimate(asked, None)
    assert estimate.admitted
    assert estimate.text_tokens > 3
    assert (estimate.items, estimate.visual_tokens, estimate.tier) == ((), 0, "default")


async def test_all_refusals_are_told_at_once_and_what_could_be_priced_is(service: Journey) -> None:
    asked = request(
        picture(RED),
        inline(b"<html>no</html>"),
        UrlRef("http://169.254.169.254/latest"),
        picture(BLUE, size=448),
        tokens=4050,
    )
    begun = decodes_begun(service)
    estimate = await service.estimate(by(asked, max_image_width=224, max_visual_tokens=10), None)
    assert not estimate.admitted
    assert sorted(codes(estimate), key=str) == sorted(
        [
            ("media_unsupported", None, 1),
            ("media_url_refused", None, 2),
            ("image_too_large", "max_image_width", 3),
            ("media_total_too_large", "max_visual_tokens", None),
            ("context_length_exceeded", "max_model_len", None),
        ],
        key=str,
    )
    assert [item.error.code if item.error else None for item in estimate.items] == [
        None,
        "media_unsupported",
        "media_url_refused",
        "image_too_large",
    ]
    # What is refused is part of what the request would cost.
    assert (estimate.visual_tokens, estimate.pixels) == (64 + 144, 224 * 224 + 448 * 448)
    assert (estimate.items[3].width, estimate.items[3].visual_tokens) == (448, 144)
    assert estimate.bytes == sum(item.bytes or 0 for item in estimate.items) > 0
    assert not estimate.complete
    assert decodes_begun(service) == begun
    assert nothing_held(service)
    await settled(service)


async def test_every_limit_that_a_picture_exceeds_is_told_and_its_price_counted(service: Journey) -> None:
    tier = {"max_image_width": 200, "max_image_height": 100, "max_image_pixels": 40_000}
    estimate = await service.estimate(by(request(picture(RED)), **tier), None)
    assert codes(estimate) == [("image_too_large", name, 0) for name in tier]
    assert all(refusal.param == estimate.items[0].param for refusal in estimate.refusals)
    assert (estimate.pixels, estimate.visual_tokens, estimate.complete) == (224 * 224, 64, True)
    assert estimate.bytes == estimate.items[0].bytes


async def test_pictures_of_the_body_count_even_where_they_are_too_many_or_too_large(service: Journey) -> None:
    refs = [picture(RED) for _ in range(5)]
    sizes = [len(content(ref)) for ref in refs]
    many = await service.estimate(by(request(*refs), max_images=4), None)
    assert codes(many) == [("too_many_images", "max_images", 4)]
    assert (many.pixels, many.visual_tokens, many.complete) == (5 * 224 * 224, 5 * 64, True)
    large = await service.estimate(by(request(*refs), max_item_bytes=10), None)
    assert [item.bytes for item in large.items] == sizes
    assert (large.bytes, large.pixels, large.complete) == (sum(sizes), 0, False)
    assert nothing_held(service)
    await settled(service)


async def test_the_log_says_why_a_request_would_not_be_admitted(service: Journey) -> None:
    ended: list[LedgerRecord] = []

    class Noting(Observer):
        def ended(self, record: LedgerRecord) -> None:
            ended.append(record)

    journey = with_tools(service, observer=Noting(service.tools.metrics, None))
    await journey.estimate(by(request(picture(RED)), max_image_width=9), None)
    await journey.estimate(request(picture(RED)), None)
    assert [(record.outcome, record.error_code, record.limit_name) for record in ended] == [
        ("estimated", "image_too_large", "max_image_width"),
        ("estimated", None, None),
    ]


async def test_what_is_too_many_is_not_looked_at(service: Journey) -> None:
    async with origin(service, content(picture(RED)), **house()) as (serving, journey):
        serving.open.set()
        asked = request(*(serving.url(f"{number}.png") for number in range(5)))
        estimate = await journey.estimate(by(asked, max_images=2), None)
        assert codes(estimate) == [("too_many_images", "max_images", 2)]
        assert serving.asked == 2
        assert [item.error is None for item in estimate.items] == [True, True, False, False, False]
        many = await journey.estimate(by(asked, max_total_bytes=2 * len(serving.body) - 1), None)
        assert [refusal.limit_name for refusal in many.refusals] == ["max_total_bytes"]
        assert nothing_held(journey)
    await settled(service)


async def test_an_estimate_says_what_would_be_made_to_fit(service: Journey) -> None:
    tier = {"max_image_width": 224, "on_excess": {"max_image_width": "fit"}}
    estimate = await service.estimate(by(request(picture(BLUE, size=448)), **tier), None)
    assert estimate.admitted
    (change,) = estimate.adjustments
    assert (change.limit_name, change.before, change.after) == ("max_image_width", "448x448", "224x224")
    assert (estimate.items[0].width, estimate.items[0].visual_tokens) == (448, 64)


async def test_a_video_is_priced_by_its_frames(service: Journey) -> None:
    asked = videos.request(VideoPart(0, "messages[0].content[0].video_url", videos.ref(clip([CLIP_RED] * 6, fps=1))))
    estimate = await service.estimate(by(asked, max_video_frames=4, on_excess={"max_video_frames": "fit"}), None)
    (item,) = estimate.items
    assert estimate.admitted
    assert (item.kind, item.frames, estimate.frames) == ("video", 4, 4)
    assert (item.width, item.height, item.pixels) == (64, 48, 4 * 64 * 48)
    assert item.visual_tokens == estimate.visual_tokens == 4 * videos.SMALL
    assert item.seconds is not None
    answered = await ask(service, by(asked, max_video_frames=4, on_excess={"max_video_frames": "fit"}))
    assert answered.visual_tokens == estimate.visual_tokens
    again = await service.estimate(by(asked, max_video_frames=4, on_excess={"max_video_frames": "fit"}), None)
    assert again.items[0].encoder_cached
    assert again.text_tokens == estimate.text_tokens
    refused = await service.estimate(by(asked, max_videos=0), None)
    assert codes(refused) == [("too_many_videos", "max_videos", 0)]
    assert refused.items[0].error is not None


async def test_a_full_house_is_a_refusal_of_an_estimate_too(service: Journey) -> None:
    journey = with_tools(service, **house(pixels_max=100_000))
    other = journey.tools.in_flight.open(Caller("other"))
    other.add("pixels", 60_000)
    estimate = await journey.estimate(request(picture(RED)), None)
    assert codes(estimate) == [("media_capacity_full", "limits.pixels_in_flight_max", None)]
    assert estimate.refusals[0].retry_after_seconds
    assert estimate.items[0].visual_tokens == 64
    other.release()
    no_queue = with_tools(service, **house(places=1, waiting_max=0))
    await no_queue.tools.multimodal_places.enter(Caller("other"))
    refused = await no_queue.estimate(request(picture(RED)), None)
    assert codes(refused) == [("media_capacity_full", "limits.multimodal_waiting_max", None)]
    assert refused.items[0].error is not None
    assert refused.items[0].error.code == HouseFull.code
    no_queue.tools.multimodal_places.leave()
    assert nothing_held(journey)
    assert nothing_held(no_queue)


async def test_an_estimate_binds_no_name(service: Journey) -> None:
    def named(ref: DataRef) -> Request:
        asked = request(ref)
        (turn,) = asked.turns
        part = msgspec.structs.replace(turn.parts[0], uuid="estimated")
        turns = (msgspec.structs.replace(turn, parts=(part, *turn.parts[1:])),)
        return msgspec.structs.replace(asked, turns=turns)

    assert (await service.estimate(named(picture(RED)), None)).admitted
    await ask(service, named(picture(BLUE)))
    refused = await service.estimate(named(picture(GREEN)), None)
    assert codes(refused) == [("media_id_conflict", None, 0)]
    # A name belongs to its tenant.
    assert (await service.estimate(by(named(picture(GREEN)), "another"), None)).admitted


async def test_an_estimate_holds_a_place_and_gives_it_back_when_its_client_leaves(service: Journey) -> None:
    async with origin(service, content(picture(RED)), **house(places=1)) as (serving, journey):
        task = asyncio.ensure_future(journey.estimate(request(serving.url()), None))
        while not serving.asked:
            await asyncio.sleep(0.01)
        assert journey.tools.multimodal_places.taken == 1
        assert journey.open_requests == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while len(journey.tools.fetches):
            await asyncio.sleep(0.01)
        assert nothing_held(journey)
    await settled(service)


async def test_a_draining_server_estimates_nothing(service: Journey) -> None:
    journey = with_tools(service)
    journey.drain()
    with pytest.raises(Draining):
        await journey.estimate(request(picture(RED)), None)
