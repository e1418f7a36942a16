"""A tier's limits with real workers: what is refused before a pixel is decoded, what is made to fit, what counts once, and what the log has
of it. What is under way of all requests is tested in ``test_in_flight``.
"""

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from tests.journeys.asking import BLUE, GREEN, RED, ask, by, picture, request, settled
from tests.journeys.house import decodes_begun, house, nothing_held, with_tools
from tests.journeys.origin import content, origin

from foveate.core.budget import Adjustment
from foveate.core.errors import (
    FetchFailed,
    FetchTimeout,
    FoveateError,
    HouseFull,
    ImageTooLarge,
    MediaTooLarge,
    MediaTotalTooLarge,
    TooManyImages,
)
from foveate.core.media import DataRef
from foveate.core.request import Request
from foveate.journey.service import Journey
from foveate.observe.metrics import Metrics
from foveate.observe.observer import Observer
from foveate.observe.records import Arrival, LedgerRecord
from foveate.observe.request_log import RequestLog

pytestmark = pytest.mark.asyncio(loop_scope="session")
CASE_102 = Path(__file__).parents[1] / "data" / "cases" / "case102_five_images_limit4.json"


def resent(count: int = 5) -> Request:
    """Case 102: a conversation that resends its picture with every turn."""
    body = json.loads(CASE_102.read_text())
    parts = [
        part for message in body["messages"] if isinstance(message["content"], list) for part in message["content"]
    ]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert len(urls) == 5
    return request(*map(DataRef, urls[:count]))


@pytest.mark.parametrize(
    ("refs", "limits", "kind", "name", "limit", "actual"),
    [
        (3, {"max_images": 2}, TooManyImages, "max_images", 2, 3),
        (3, {"max_image_width": 223}, ImageTooLarge, "max_image_width", 223, 224),
        (3, {"max_image_height": 223}, ImageTooLarge, "max_image_height", 223, 224),
        (3, {"max_image_pixels": 50_000}, ImageTooLarge, "max_image_pixels", 50_000, 50_176),
        (3, {"max_total_pixels": 150_527}, MediaTotalTooLarge, "max_total_pixels", 150_527, 150_528),
        (3, {"max_visual_tokens": 191}, MediaTotalTooLarge, "max_visual_tokens", 191, 192),
        (3, {"max_tenant_pixels": 150_527}, MediaTotalTooLarge, "max_tenant_pixels", 150_527, 150_528),
        (3, {"max_tenant_visual_tokens": 191}, MediaTotalTooLarge, "max_tenant_visual_tokens", 191, 192),
        (3, {"max_tenant_requests": 0}, HouseFull, "max_tenant_requests", 0, 1),
    ],
)
async def test_each_limit_refuses_before_a_pixel_is_decoded(
    service: Journey, refs: int, limits: dict[str, int], kind: type[FoveateError], name: str, limit: int, actual: int
) -> None:
    begun = decodes_begun(service)
    with pytest.raises(kind) as caught:
        await ask(service, by(request(*(picture(RED) for _ in range(refs))), **limits))
    error = caught.value
    assert (error.limit_name, error.limit, error.actual) == (name, limit, actual)
    assert decodes_begun(service) == begun
    assert nothing_held(service)
    await settled(service)


async def test_bytes_are_judged_for_each_picture_and_for_all(service: Journey) -> None:
    pictures = [picture(RED), picture(BLUE), picture(GREEN)]
    sizes = [len(content(ref)) for ref in pictures]
    for limits, kind, actual, part in (
        ({"max_item_bytes": max(sizes) - 1}, MediaTooLarge, max(sizes), sizes.index(max(sizes))),
        ({"max_total_bytes": sum(sizes) - 1}, MediaTotalTooLarge, sum(sizes), 2),
        ({"max_tenant_bytes": sum(sizes) - 1}, MediaTotalTooLarge, sum(sizes), 2),
    ):
        with pytest.raises(kind) as caught:
            await ask(service, by(request(*pictures), **limits))
        assert (caught.value.limit_name, caught.value.actual, caught.value.part) == (*limits, actual, part)
    exact = {"max_item_bytes": max(sizes), "max_total_bytes": sum(sizes), "max_tenant_bytes": sum(sizes)}
    assert (await ask(service, by(request(*pictures), **exact))).images == 3
    assert nothing_held(service)


async def test_the_ceiling_of_decoding_holds_where_a_tier_makes_fit(service: Journey) -> None:
    limits = dataclasses.replace(service.tools.limits, decode_pixels_max=50_000)
    fitting = {"max_image_width": 100, "on_excess": {"max_image_width": "fit"}}
    with pytest.raises(ImageTooLarge) as caught:
        await ask(with_tools(service, limits=limits), by(request(picture(RED)), **fitting))
    assert caught.value.limit_name == "media.decode_pixels_max"


async def test_a_picture_is_scaled_down_where_the_tier_says_so_and_the_answer_says_what_was_changed(
    service: Journey,
) -> None:
    tier = {"max_image_width": 224, "on_excess": {"max_image_width": "fit"}}
    asked = by(request(picture(RED), picture(BLUE, size=448), text="Describe both images."), **tier)
    answered = await ask(service, asked)
    assert answered.text == "First image: a red circle. Second image: a blue circle."
    assert answered.visual_tokens == 128
    param = asked.images[1].param
    assert answered.adjustments == (Adjustment(1, param, "max_image_width", "448x448", "224x224"),)


async def test_pictures_are_scaled_down_to_fit_the_visual_tokens(service: Journey) -> None:
    pictures = picture(RED, size=448), picture(BLUE, size=448)
    whole = await ask(service, request(*pictures, text="Describe both images."))
    tier = {"max_visual_tokens": 200, "on_excess": {"max_visual_tokens": "fit"}}
    fitted = await ask(service, by(request(*pictures, text="Describe both images."), **tier))
    assert (whole.visual_tokens, whole.adjustments) == (288, ())
    assert 150 < fitted.visual_tokens <= 200
    assert [change.limit_name for change in fitted.adjustments] == ["max_visual_tokens"] * 2
    with pytest.raises(MediaTotalTooLarge) as caught:
        # No size of this model's pictures costs less than 16 tokens.
        await ask(service, by(request(*pictures), max_visual_tokens=31, on_excess={"max_visual_tokens": "fit"}))
    assert caught.value.limit_name == "max_visual_tokens"


async def test_a_resent_picture_counts_each_time_or_once(service: Journey) -> None:
    with pytest.raises(TooManyImages) as caught:
        await ask(service, by(resent(), max_images=4))
    assert (caught.value.limit, caught.value.actual, caught.value.limit_name) == (4, 5, "max_images")
    assert "5 pictures" in caught.value.public
    size = len(content(resent().images[0].ref))  # type: ignore[arg-type]
    tight = {"max_images": 1, "max_total_bytes": size, "max_total_pixels": 16, "max_tenant_bytes": size}
    answered = await ask(service, by(resent(), count_repeats=False, **tight))
    assert answered.images == 5
    assert answered.visual_tokens == 5 * 16
    assert nothing_held(service)


async def test_different_pictures_count_where_repeats_do_not(service: Journey) -> None:
    red = picture(RED)
    with pytest.raises(TooManyImages) as caught:
        await ask(service, by(request(red, picture(BLUE), red, picture(GREEN)), count_repeats=False, max_images=2))
    assert (caught.value.limit, caught.value.actual, caught.value.part) == (2, 3, 3)
    assert nothing_held(service)
    await settled(service)


async def test_one_picture_behind_several_urls_is_held_and_counted_once(service: Journey) -> None:
    data = content(picture(RED))
    async with origin(service, data, **house()) as (serving, journey):
        serving.open.set()
        urls = [serving.url(f"a.png?signature={number}") for number in range(4)]
        tier = {"count_repeats": False, "max_images": 1, "max_total_bytes": len(data)}
        assert (await ask(journey, by(request(*urls), **tier))).images == 4
        with pytest.raises(TooManyImages):
            await ask(journey, by(request(*urls, serving.url("b.png")), **tier))
        assert serving.asked == 4
        assert nothing_held(journey)


async def test_a_tier_s_fetch_time_ends_its_wait_and_nobody_else_s(service: Journey) -> None:
    async with origin(service, content(picture(RED)), **house()) as (serving, journey):
        patient = asyncio.ensure_future(ask(journey, by(request(serving.url()), max_fetch_seconds=20)))
        with pytest.raises(FetchTimeout) as caught:
            await ask(journey, by(request(serving.url(), picture(BLUE)), max_fetch_seconds=0.2))
        error = caught.value
        assert (error.limit_name, error.limit, error.part) == ("max_fetch_seconds", 0.2, 0)
        assert error.actual is not None
        assert error.actual >= 0.2
        serving.open.set()
        assert (await patient).text == "A red circle."
        assert serving.asked == 1
        assert nothing_held(journey)


async def test_how_far_a_fetch_came_is_recorded_although_it_failed(service: Journey) -> None:
    ended: list[LedgerRecord] = []

    class Recording(Observer):
        def ended(self, record: LedgerRecord) -> None:
            ended.append(record)
            super().ended(record)

    recording = Recording(service.tools.metrics, None)
    async with origin(service, content(picture(RED)), **house(), observer=recording) as (serving, journey):
        serving.early, serving.breaking = 300, True
        with pytest.raises(FetchFailed):
            await ask(journey, request(serving.url("hop"), serving.url("hop")))
        assert serving.asked == 3, "a redirect, and the picture twice"
        assert nothing_held(journey)
    assert [item.arrival for item in ended[0].items] == [Arrival(redirects=1, retries=1, partial_bytes=300)] * 2
    assert ended[0].counts.redirects == 1
    await settled(service)


async def test_a_small_tier_s_byte_limit_does_not_fail_a_larger_one_s_fetch(service: Journey) -> None:
    async with origin(service, content(picture(RED)), **house()) as (serving, journey):
        large = asyncio.ensure_future(ask(journey, request(serving.url())))
        small = asyncio.ensure_future(ask(journey, by(request(serving.url()), max_item_bytes=100)))
        while serving.asked < 2:
            await asyncio.sleep(0.01)
        serving.open.set()
        assert (await large).text == "A red circle."
        with pytest.raises(MediaTooLarge) as caught:
            await small
        assert (caught.value.limit_name, caught.value.limit) == ("max_item_bytes", 100)


async def test_every_budget_field_is_in_the_log_and_refusals_are_counted(service: Journey, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    metrics = Metrics()
    with RequestLog(path) as log:
        journey = with_tools(service, observer=Observer(metrics, log), metrics=metrics)
        tier = {"tier": "small", "max_image_width": 224, "on_excess": {"max_image_width": "fit"}}
        small, large = picture(RED), picture(BLUE, size=448)
        await ask(journey, by(request(small, large), "acme", **tier))
        with pytest.raises(TooManyImages):
            await ask(journey, by(request(small, large), "acme", tier="tiny", max_images=1))
    answered, refused = (json.loads(line) for line in path.read_text().splitlines())
    sizes = [len(content(ref)) for ref in (small, large)]
    assert (
        answered.items()
        >= {
            "tenant": "acme",
            "tier": "small",
            "outcome": "answered",
            "limit_name": None,
            "images": 2,
            "videos": 0,
            "frames": 0,
            "video_seconds": 0.0,
            "pixels": 224 * 224 + 448 * 448,
            "media_bytes": sum(sizes),
            "largest_width": 448,
            "largest_height": 448,
            "largest_item_bytes": max(sizes),
            "redirects": 0,
            "visual_tokens": 128,
            "adjustments": 1,
        }.items()
    )
    assert answered["fetch_seconds"] >= 0
    assert refused.items() >= {"tier": "tiny", "outcome": "refused", "limit_name": "max_images", "images": 2}.items()
    rejections = 'foveate_budget_rejections_total{limit="max_images"} 1.0'
    assert rejections in metrics.exposition()[0].decode()


async def test_what_a_fetch_was_refused_for_is_in_the_log(service: Journey, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    metrics = Metrics()
    size = len(content(picture(RED)))
    with RequestLog(path) as log:
        async with origin(service, content(picture(RED)), **house()) as (serving, fetching):
            journey = with_tools(fetching, observer=Observer(metrics, log), metrics=metrics)
            with pytest.raises(FetchTimeout):
                await ask(journey, by(request(serving.url()), max_fetch_seconds=0.2))
            serving.open.set()
            with pytest.raises(MediaTooLarge):
                await ask(journey, by(request(serving.url("b.png")), max_item_bytes=size - 1))
    late, large = (json.loads(line) for line in path.read_text().splitlines())
    assert late["fetch_seconds"] >= 0.2
    assert large["largest_item_bytes"] >= size - 1
    assert large["fetch_seconds"] > 0


async def test_what_a_header_was_refused_for_is_in_the_log(service: Journey, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with RequestLog(path) as log:
        journey = with_tools(service, observer=Observer(Metrics(), log))
        with pytest.raises(ImageTooLarge):
            await ask(journey, by(request(picture(RED, size=100)), max_image_width=99))
        with pytest.raises(ImageTooLarge):
            await ask(journey, by(request(picture(RED, size=100)), max_image_pixels=9_999))
    for line in map(json.loads, path.read_text().splitlines()):
        assert (line["pixels"], line["largest_width"], line["largest_height"]) == (10_000, 100, 100)
        assert line["media_bytes"] == line["largest_item_bytes"] > 0
