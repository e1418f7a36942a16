"""What a fetch tries once more, and what never: failing origins, broken transfers, dropped connections. Against real sockets."""

from __future__ import annotations

import asyncio

import pytest
from blake3 import blake3
from tests.unit.media.sites import BODY, Buffer, Site, answering, fetcher_for, get, redirecting, refused

from foveate.core.errors import FetchFailed, FetchRejected
from foveate.media.fetch import FetchLimits
from foveate.media.transport import Progress


@pytest.mark.parametrize(
    "status", ["404 Not Found", "403 Forbidden", "410 Gone", "400 Bad Request", "300 Multiple Choices"]
)
async def test_a_refusing_origin_is_asked_once_and_quoted(status: str) -> None:
    async with Site(answering(b"secret page", status)) as site:
        error = await refused(site, FetchRejected)
    assert status[:3] in error.public
    assert "secret" not in error.public
    assert len(site.heads) == 1
    assert ("User-Agent" in error.public) == status.startswith("403")


@pytest.mark.parametrize(("status", "times"), [("500 Oh", 2), ("503 Busy", 2), ("429 Slow down", 1), ("408 Late", 1)])
async def test_a_failing_origin_is_tried_again_once_when_that_can_help(status: str, times: int) -> None:
    async with Site(answering(b"x", status)) as site:
        error = await refused(site, FetchFailed)
    assert status[:3] in error.public
    assert len(site.heads) == times


async def test_a_broken_transfer_starts_again() -> None:
    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        half = answering(BODY[: len(BODY) // 2], length=str(len(BODY)))
        await (half if len(site.heads) == 1 else answering())(site, target, writer)

    async with Site(answer) as site:
        sink = Buffer()
        assert (await get(site, sink=sink)).digest == blake3(BODY).hexdigest()
    assert bytes(sink.data) == BODY
    assert sink.resets == 1


async def test_an_origin_that_always_breaks_is_asked_twice() -> None:
    async with Site(answering(b"", "200 OK", length="500")) as site:
        await refused(site, FetchFailed)
    assert len(site.heads) == 2


class Dropping:
    """Answers the first requests of each connection, and drops it at the one after: an origin, or what stands before it, that does not
    keep what it left open.
    """

    def __init__(self, answered: int) -> None:
        self._answered = answered
        self._seen: dict[asyncio.StreamWriter, int] = {}

    async def __call__(self, site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        self._seen[writer] = self._seen.get(writer, 0) + 1
        if self._seen[writer] > self._answered:
            raise ConnectionResetError
        await answering()(site, target, writer)


async def test_a_kept_connection_that_is_dropped_costs_one_more_request_on_a_new_one() -> None:
    async with Site(Dropping(1)) as site:
        site.keep_open = True
        async with fetcher_for(site) as fetcher:
            # Two connections are left open, so that a retry over a kept one would meet the second and fail.
            await asyncio.gather(*(fetcher.fetch(site.url(), Buffer()) for _ in range(2)))
            assert (len(site.heads), site.connections) == (2, 2)
            progress = Progress()
            sink = Buffer()
            await fetcher.fetch(site.url(), sink, progress=progress)
    assert bytes(sink.data) == BODY
    assert (len(site.heads), site.connections) == (4, 3)
    assert progress.retries == 1


async def test_an_origin_that_drops_kept_and_new_connections_is_asked_twice_and_no_more() -> None:
    """The HTTP client would send a third GET by itself: a signed or counted URL is used up by it, and nobody would know."""
    answers = [answering()]

    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        if not answers:
            raise ConnectionResetError
        await answers.pop()(site, target, writer)

    async with Site(answer) as site:
        site.keep_open = True
        async with fetcher_for(site) as fetcher:
            await fetcher.fetch(site.url(), Buffer())
            progress = Progress()
            with pytest.raises(FetchFailed):
                await fetcher.fetch(site.url(), Buffer(), progress=progress)
    assert len(site.heads) == 1 + 2
    assert progress.retries == 1


async def test_dropping_kept_connections_makes_no_host_dead() -> None:
    async with Site(Dropping(1)) as site:
        site.keep_open = True
        async with fetcher_for(site, limits=FetchLimits(dead_host_failures=1, dead_host_seconds=0.2)) as fetcher:
            for _ in range(2):
                await fetcher.fetch(site.url(), Buffer())
                await asyncio.sleep(0.3)  # what it answered so long ago speaks for it no more
    assert len(site.heads) == 3


async def test_how_far_a_fetch_came_is_told_where_it_fails() -> None:
    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        await (redirecting("/a", "/b") if len(site.heads) < 3 else answering(b"no", "404 Gone"))(site, target, writer)

    async with Site(answer) as site, fetcher_for(site) as fetcher:
        site.keep_open = True
        progress = Progress()
        with pytest.raises(FetchRejected):
            await fetcher.fetch(site.url(), Buffer(), progress=progress)
    assert (progress.redirects, progress.retries) == (2, 0)
