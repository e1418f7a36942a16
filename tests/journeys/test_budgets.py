"""Budgets with real workers: what is refused before a pixel is decoded, what is made to fit, what counts once, and what is given back."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.asking import BLUE, GREEN, RED, ask, by, picture, request, settled
from tests.journeys.origin import content, origin

from foveate.core.budget import Adjustment, Caller
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
from foveate.core.media import DataRef, MediaRef
from foveate.core.request import Request
from foveate.journey.in_flight import InFlight
from foveate.journey.in_flight_limits import QUANTITIES
from foveate.journey.places import Places
from foveate.journey.service import Journey
from foveate.observe.metrics import Metrics
from foveate.observe.observer import Observer
from foveate.observe.records import Arrival, LedgerRecord
from foveate.observe.request_log import RequestLog

pytestmark = pytest.mark.asyncio(loop_scope="session")
HUGE = 10**12
CASE_102 = Path(__file__).parents[1] / "data" / "cases" / "case102_five_images_limit4.json"


def house(
    bytes_max: int = HUGE,
    pixels_max: int = HUGE,
    visual_tokens_max: int = HUGE,
    places: int = 64,
    waiting_max: int = 512,
) -> dict[str, Any]:
    """Accounts and places of these sizes."""
    return {
        "in_flight": InFlight(bytes_max=bytes_max, pixels_max=pixels_max, visual_tokens_max=visual_tokens_max),
        "multimodal_places": Places(places, waiting_max=waiting_max),
    }


def with_tools(service: Journey, **tools: Any) -> Journey:
    """The same server with these tools replaced."""
    return Journey(dataclasses.replace(service.tools, **tools), models=service.models)


def nothing_held(service: Journey) -> bool:
    """Whether every account and place was given back."""
    accounts, places = service.tools.in_flight, service.tools.multimodal_places
    used = [accounts.used(quantity) for quantity in QUANTITIES]
    return not any((*used, accounts.requests, accounts.tenants, places.taken, places.waiting, service.open_requests))


def decodes_begun(service: Journey) -> int:
    """Pictures whose work was begun: each looks for its model inputs first."""
    stats = service.tools.processor_cache.stats()
    return stats.hits + stats.misses


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


@pytest.mark.parametrize(
    ("capacity", "quantity", "name", "cost"),
    [
        ("bytes_max", "bytes", "limits.media_bytes_in_flight_max", None),
        ("pixels_max", "pixels", "limits.pixels_in_flight_max", 50_176),
        ("visual_tokens_max", "visual_tokens", "limits.visual_tokens_in_flight_max", 64),
    ],
)
async def test_a_full_house_is_told_to_come_back_and_what_never_fits_is_not(
    service: Journey, capacity: str, quantity: Any, name: str, cost: int | None
) -> None:
    red = picture(RED)
    cost = len(content(red)) if cost is None else cost
    journey = with_tools(service, **house(**{capacity: 2 * cost}))
    other = journey.tools.in_flight.open(Caller("other"))
    other.add(quantity, cost + 1)
    with pytest.raises(HouseFull) as full:
        await ask(journey, request(red))
    assert (full.value.limit_name, full.value.limit, full.value.actual) == (name, 2 * cost, 2 * cost + 1)
    assert full.value.retry_after_seconds
    with pytest.raises(MediaTotalTooLarge) as never:
        await ask(journey, request(red, red, red))
    assert (never.value.limit_name, never.value.actual) == (name, 3 * cost)
    # Text neither waits nor fails.
    assert (await ask(journey, request(text="Hello!"))).text
    other.release()
    assert (await ask(journey, request(red))).text == "A red circle."
    assert nothing_held(journey)
    await settled(service)


async def test_bytes_in_flight_are_bounded_while_they_stream(service: Journey) -> None:
    data = content(picture(RED))
    async with origin(service, data, **house(bytes_max=len(data))) as (serving, journey):
        serving.open.set()
        other = journey.tools.in_flight.open(Caller("other"))
        other.add("bytes", 1)
        with pytest.raises(HouseFull) as full:
            await ask(journey, request(serving.url()))
        assert full.value.limit_name == "limits.media_bytes_in_flight_max"
        other.release()
        assert (await ask(journey, request(serving.url()))).text == "A red circle."
        for refs in ((serving.url(), picture(BLUE)), (serving.url("a.png"), serving.url("b.png"))):
            with pytest.raises(MediaTotalTooLarge) as never:
                await ask(journey, request(*refs))
            assert never.value.limit_name == "limits.media_bytes_in_flight_max"
        assert nothing_held(journey)
    await settled(service)


async def test_what_arrives_is_judged_for_its_request_and_its_tenant_before_all_of_it_is_here(service: Journey) -> None:
    data = content(picture(RED)) + bytes(60_000)
    async with origin(service, data, **house()) as (serving, journey):
        serving.early = 50_000
        urls = [serving.url(f"{name}.png") for name in "abc"]
        others = asyncio.ensure_future(ask(journey, by(request(urls[0]), tenant="other")))
        with pytest.raises(MediaTotalTooLarge) as total:
            await ask(journey, by(request(*urls), max_total_bytes=120_000))
        assert total.value.limit_name == "max_total_bytes"
        with pytest.raises(MediaTotalTooLarge) as never:
            await ask(journey, by(request(*urls), tenant="a", max_tenant_bytes=120_000))
        assert never.value.limit_name == "max_tenant_bytes"
        mine = asyncio.ensure_future(ask(journey, by(request(*urls[:2]), tenant="b", max_tenant_bytes=120_000)))
        while journey.tools.in_flight.used("bytes") < 100_000:
            await asyncio.sleep(0.01)
        with pytest.raises(HouseFull) as full:
            await ask(journey, by(request(urls[2]), tenant="b", max_tenant_bytes=120_000))
        assert (full.value.limit_name, full.value.limit) == ("max_tenant_bytes", 120_000)
        mine.cancel()
        await asyncio.wait([mine])
        serving.open.set()
        assert (await others).text == "A red circle.", "whoever else waits for the same transfer still gets it"
        assert nothing_held(journey)
    await settled(service)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_what_came_with_the_body_is_charged_while_the_rest_is_still_fetched(service: Journey, place: int) -> None:
    red, blue = picture(RED), picture(BLUE)
    async with origin(service, content(picture(GREEN)), **house()) as (serving, journey):
        refs: list[MediaRef] = [red, blue]
        refs.insert(place, serving.url())
        task = asyncio.ensure_future(ask(journey, request(*refs)))
        while not serving.asked:
            await asyncio.sleep(0.01)
        assert journey.tools.in_flight.used("bytes") == len(content(red)) + len(content(blue))
        serving.open.set()
        assert (await task).images == 3
        assert nothing_held(journey)


async def test_a_tenant_s_queue_is_its_own(service: Journey) -> None:
    async with origin(service, content(picture(RED)), **house(places=1)) as (serving, journey):
        limits = {"max_tenant_waiting": 1}
        inside = asyncio.ensure_future(ask(journey, by(request(serving.url()), "a", **limits)))
        while not serving.asked:
            await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(ask(journey, by(request(picture(RED)), "a", **limits)))
        while not journey.tools.multimodal_places.waiting:
            await asyncio.sleep(0.01)
        with pytest.raises(HouseFull) as full:
            await ask(journey, by(request(picture(RED)), "a", **limits))
        assert full.value.limit_name == "max_tenant_waiting"
        other = asyncio.ensure_future(ask(journey, by(request(picture(BLUE)), "b", **limits)))
        assert (await ask(journey, by(request(text="Hello!"), "a", **limits))).text
        serving.open.set()
        answers = [(await answer).text for answer in (inside, waiting, other)]
        assert answers == ["A red circle.", "A red circle.", "A blue circle."]
        assert nothing_held(journey)


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 9, 27, 81])
async def test_whoever_leaves_gives_everything_back(service: Journey, milliseconds: int) -> None:
    async with origin(service, content(picture(RED)), **house(places=2)) as (serving, journey):
        if milliseconds % 2:
            serving.open.set()
        asked = [by(request(picture(RED), serving.url(), tokens=200), tenant) for tenant in "aabbc"]
        tasks = [asyncio.ensure_future(ask(journey, each)) for each in asked]
        await asyncio.sleep(milliseconds / 1000)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await journey.idle()
        while len(journey.tools.fetches):
            await asyncio.sleep(0.01)
        assert nothing_held(journey)
    await settled(service)


async def test_accounts_are_given_back_at_the_first_token(service: Journey) -> None:
    journey = with_tools(service, **house())
    async with journey.answer(request(picture(RED)), None) as answer:
        await answer.begin()
        accounts = journey.tools.in_flight
        assert (accounts.requests, journey.tools.multimodal_places.taken) == (0, 0)
        assert not any(map(accounts.used, QUANTITIES))


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
