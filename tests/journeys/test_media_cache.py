"""The media cache in a journey: what is used, asked about, fetched again and never kept, against an origin on a socket."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.journeys.asking import BLUE, GREEN, RED, ask, by, picture, request, settled
from tests.journeys.origin import Origin, content, origin

from foveate.caches.media import MediaCache
from foveate.core.errors import MediaTooLarge, MediaUnsupported, TooManyRedirects, UrlRefused
from foveate.decisions.freshness import NotKept
from foveate.journey.service import Journey
from foveate.observe.observer import Observer
from foveate.observe.records import Counts, LedgerRecord
from foveate.observe.request_line import line
from foveate.observe.request_log import RequestLog

pytestmark = pytest.mark.asyncio(loop_scope="session")
MIB = 2**20
FRESH = {"Cache-Control": "max-age=600"}
TAGGED = {"Cache-Control": "no-cache", "ETag": '"1"'}


class Site(Origin):
    """Answers each path with ``pages`` (a body and its fields) and knows whether it ``changed`` since; notes what it was asked."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.pages: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.conditions: list[dict[str, str]] = []
        self.changed = False
        self.fields_of_304: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        condition = {name: value for name, value in request.headers.items() if name.startswith("If-")}
        self.conditions.append(condition)
        body, fields = self.pages[request.path]
        if "Location" in fields:
            return web.Response(status=302, headers=fields)
        if condition and not self.changed:
            return web.Response(status=304, headers=self.fields_of_304)
        return web.Response(body=body, headers=fields)


class Notes(RequestLog):
    """Keeps what a request log would write."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[LedgerRecord] = []

    def write(self, record: LedgerRecord) -> None:
        self.records.append(record)

    @property
    def last(self) -> Counts:
        return self.records[-1].counts


@asynccontextmanager
async def cached(
    service: Journey, *, bytes_max: int = MIB, apart: bool = False
) -> AsyncIterator[tuple[Site, Journey, Notes]]:
    """A journey with a media cache and a log of its own, and an origin for it."""
    tools, notes = service.tools, Notes()
    cache = MediaCache(bytes_max, tools.arena.release)
    replaced: dict[str, Any] = {
        "media_cache": cache,
        "limits": dataclasses.replace(tools.limits, caches_per_tenant=apart),
        "observer": Observer(tools.metrics, notes),
    }
    async with origin(service, b"", made=Site, **replaced) as (site, journey):
        try:
            yield site, journey, notes
            await settled(journey)
        finally:
            cache.clear()
    await settled(service)


def shows(colour: tuple[int, int, int]) -> bytes:
    return content(picture(colour))


async def test_what_is_fresh_is_used_as_it_is(service: Journey) -> None:
    async with cached(service) as (site, journey, notes):
        site.pages["/a.png"] = shows(RED), FRESH
        for _ in range(3):
            assert (await ask(journey, request(site.url()))).text == "A red circle."
        assert site.asked == 1
        assert [record.counts.fetches for record in notes.records] == [1, 0, 0]
        assert [record.items[0].source for record in notes.records] == [None, "cache", "cache"]
        assert line(notes.records[1], 0.0).items[0].source == "cache"
        stats = journey.tools.media_cache.stats()
        assert (stats.entries, stats.hits, stats.misses) == (1, 2, 1)
        assert stats.saved_ms["media_fetch"] > 0
        # Its bytes are what the arena holds for it, no more and no less: settled() compares the sums.
        assert stats.bytes >= len(site.pages["/a.png"][0])


async def test_a_changed_picture_is_seen_when_its_time_is_up(service: Journey) -> None:
    async with cached(service) as (site, journey, _):
        site.pages["/a.png"] = shows(RED), {"Cache-Control": "max-age=1"}
        assert (await ask(journey, request(site.url()))).text == "A red circle."
        site.pages["/a.png"] = shows(BLUE), {"Cache-Control": "max-age=1"}
        # A use does not make it last longer.
        answers = []
        for _ in range(4):
            answers.append((await ask(journey, request(site.url()))).text)
            await asyncio.sleep(0.4)
        assert answers[-1] == "A blue circle."
        assert journey.tools.media_cache.stats().entries == 1


async def test_a_picture_is_asked_about_when_it_may_not_be_used_unasked(service: Journey) -> None:
    async with cached(service) as (site, journey, notes):
        site.pages["/a.png"] = shows(RED), TAGGED
        for _ in range(2):
            assert (await ask(journey, request(site.url()))).text == "A red circle."
        assert notes.last.fetches == 1
        assert notes.records[-1].items[0].source == "revalidated"
        site.pages["/a.png"], site.changed = (shows(BLUE), TAGGED), True
        assert (await ask(journey, request(site.url()))).text == "A blue circle."
        assert site.conditions == [{}, {"If-None-Match": '"1"'}, {"If-None-Match": '"1"'}]
        counts = journey.tools.media_cache.counts()
        assert (counts.unchanged, counts.changed) == (1, 1)


async def test_an_origin_that_has_not_changed_may_say_how_long_that_holds(service: Journey) -> None:
    async with cached(service) as (site, journey, _):
        site.pages["/a.png"] = shows(RED), {"ETag": '"1"'}
        site.fields_of_304 = FRESH
        for _ in range(4):
            await ask(journey, request(site.url()))
        assert site.asked == 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"Cache-Control": "no-store, max-age=600"}, "no_store"),
        ({"Cache-Control": "private, max-age=600"}, "private"),
        ({**FRESH, "Set-Cookie": "a=b"}, "set_cookie"),
        ({**FRESH, "Vary": "*"}, "vary"),
        ({"Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT", "Date": ""}, "no_freshness"),
        ({}, "no_freshness"),
    ],
)
async def test_what_may_not_be_kept_is_fetched_each_time(
    service: Journey, fields: dict[str, str], reason: NotKept
) -> None:
    async with cached(service) as (site, journey, _):
        site.pages["/a.png"] = shows(RED), fields
        for _ in range(2):
            assert (await ask(journey, request(site.url()))).text == "A red circle."
        assert site.asked == 2
        assert journey.tools.media_cache.counts().not_kept[reason] == 2
        assert journey.tools.media_cache.stats().entries == 0


async def test_what_is_no_picture_is_not_kept(service: Journey) -> None:
    async with cached(service) as (site, journey, _):
        site.pages["/a.png"] = b"<!doctype html>" + b" " * 500, FRESH
        for _ in range(2):
            with pytest.raises(MediaUnsupported):
                await ask(journey, request(site.url()))
        assert site.asked == 2
        assert journey.tools.media_cache.counts().not_kept["not_media"] == 2


async def test_a_picture_that_is_gone_is_forgotten(service: Journey) -> None:
    async with cached(service) as (site, journey, _):
        site.pages["/a.png"] = shows(RED), TAGGED
        await ask(journey, request(site.url()))
        site.pages["/a.png"] = b"", {"Location": "a.png"}
        with pytest.raises(TooManyRedirects):
            await ask(journey, request(site.url()))
        assert journey.tools.media_cache.stats().entries == 0


async def test_many_that_want_it_at_once_fetch_it_once(service: Journey) -> None:
    async with cached(service) as (site, journey, _):
        site.pages["/a.png"] = shows(GREEN), TAGGED
        for expected in (1, 2):
            answers = await asyncio.gather(*(ask(journey, request(site.url())) for _ in range(8)))
            assert {answer.text for answer in answers} == {"A green circle."}
            assert site.asked == expected


async def test_a_smaller_tier_s_limit_holds_for_what_is_kept(service: Journey) -> None:
    async with cached(service) as (site, journey, _):
        for fields in (FRESH, TAGGED):
            site.pages["/a.png"] = shows(RED), fields
            await ask(journey, request(site.url()))
            with pytest.raises(MediaTooLarge) as caught:
                await ask(journey, by(request(site.url()), max_item_bytes=1000))
            assert (caught.value.limit_name, caught.value.limit) == ("max_item_bytes", 1000)
            assert (await ask(journey, request(site.url()))).text == "A red circle."
            journey.tools.media_cache.clear()


async def test_redirects_are_followed_each_time_and_count(service: Journey) -> None:
    async with cached(service) as (site, journey, notes):
        site.pages["/to"] = b"", {"Location": "/a.png", **FRESH}
        site.pages["/a.png"] = shows(RED), FRESH
        for _ in range(2):
            assert (await ask(journey, request(site.url("to")))).text == "A red circle."
            assert notes.last.redirects == 1
        assert site.asked == 3
        with pytest.raises(TooManyRedirects):
            await ask(journey, by(request(site.url("to")), max_redirects=0))
        site.pages["/to"] = b"", {"Location": "http://169.254.169.254/a.png"}
        with pytest.raises(UrlRefused):
            await ask(journey, request(site.url("to")))
        site.pages["/to"] = b"", {"Location": "/b.png"}
        site.pages["/b.png"] = shows(BLUE), FRESH
        assert (await ask(journey, request(site.url("to")))).text == "A blue circle."


async def test_tenants_kept_apart_have_entries_of_their_own(service: Journey) -> None:
    async with cached(service, apart=True) as (site, journey, _):
        site.pages["/a.png"] = shows(RED), {"Cache-Control": "private, max-age=600"}
        for tenant, asked in (("us", 1), ("them", 2), ("us", 2), ("them", 2)):
            assert (await ask(journey, by(request(site.url()), tenant))).text == "A red circle."
            assert site.asked == asked
        scopes = [held.key.scope for held in journey.tools.media_cache.entries()]
        assert sorted(scopes) == ["them", "us"]


async def test_another_query_is_another_url(service: Journey) -> None:
    async with cached(service) as (site, journey, _):
        site.pages["/a.png"] = shows(RED), FRESH
        for query in ("", "?sig=1", "?sig=2", "?sig=1"):
            await ask(journey, request(site.url(f"a.png{query}")))
        assert site.asked == 3


async def test_it_makes_room_and_is_never_more_than_its_capacity(service: Journey) -> None:
    async with cached(service, bytes_max=8192) as (site, journey, _):
        for number in range(12):
            site.pages[f"/{number}.png"] = shows(RED), FRESH
            await ask(journey, request(site.url(f"{number}.png")))
            stats = journey.tools.media_cache.stats()
            assert 0 < stats.bytes <= 8192
        assert stats.evictions["capacity"] > 0
        site.pages["/large.png"] = shows(RED) + bytes(8192), FRESH
        for _ in range(2):
            assert (await ask(journey, request(site.url("large.png")))).text == "A red circle."
        assert site.asked == 14
        assert journey.tools.media_cache.stats().oversize == 2


async def test_it_is_off_unless_it_has_a_capacity(service: Journey) -> None:
    assert not service.tools.media_cache.on
    async with cached(service, bytes_max=0) as (site, journey, notes):
        site.pages["/a.png"] = shows(RED), {**FRESH, "ETag": '"1"'}
        for _ in range(2):
            await ask(journey, request(site.url()))
        assert site.conditions == [{}, {}]
        stats = journey.tools.media_cache.stats()
        assert (stats.hits, stats.misses, stats.oversize) == (0, 0, 0)
        assert notes.records[-1].items[0].source is None
