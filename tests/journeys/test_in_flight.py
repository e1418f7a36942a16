"""What is under way of the server and of each tenant, with real workers: charged while it arrives, refused when the house is full, and
given back whoever leaves.
"""

import asyncio
from typing import Any

import pytest
from tests.journeys.asking import BLUE, GREEN, RED, ask, by, picture, request, settled
from tests.journeys.house import house, nothing_held, with_tools
from tests.journeys.origin import content, origin

from foveate.core.budget import Caller
from foveate.core.errors import HouseFull, MediaTotalTooLarge
from foveate.core.media import MediaRef
from foveate.journey.in_flight_limits import QUANTITIES
from foveate.journey.service import Journey

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
