"""The fetcher against real sockets on 127.0.0.1: what it sends, what it takes of odd origins, how many at once, and what it never tells.

Where it connects, what it tries again, its time limits and encodings have files of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest
from blake3 import blake3
from tests.unit.media.sites import (
    BODY,
    Answer,
    Arrived,
    Buffer,
    Names,
    Site,
    answering,
    fetcher_for,
    get,
    redirecting,
    refused,
    silent,
)

from foveate.core.errors import FetchFailed, FetchRejected, FoveateError, MediaTooLarge, QueueFull
from foveate.media.fetch import FetchLimits


async def test_streams_the_body_into_the_sink_and_hashes_it() -> None:
    async with Site(answering()) as site:
        sink = Buffer()
        fetched = await get(site, sink=sink)
    assert bytes(sink.data) == BODY
    assert fetched == Arrived(blake3(BODY).hexdigest(), len(BODY), 0)
    assert sink.hints == [len(BODY)]
    assert len(site.heads) == 1


async def test_sends_the_target_byte_for_byte_and_says_who_it_is() -> None:
    target = "/a%27b.jpg?X-Sig=a%2Fb%2Bc%3D&e=%e4%7E'%2e%2E/.."
    async with Site(answering()) as site:
        await get(site, target)
    lines = site.heads[0].split("\r\n")
    assert lines[0] == f"GET {target} HTTP/1.1"
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    assert headers["Host"] == f"127.0.0.1:{site.port}"
    assert headers["User-Agent"].startswith("foveate-test/")
    assert headers["Accept-Encoding"] == "identity"
    assert "Cookie" not in headers


@pytest.mark.parametrize("target", ["/", "/?", "/a.png?", "/a.png??", "/a?b?c=d/?", "/%3F?%3f", "/a/./../b", "/:80"])
async def test_odd_targets_arrive_as_they_are_written(target: str) -> None:
    async with Site(redirecting(target)) as site:
        await get(site, "/first" + target)
    assert [head.split()[1] for head in site.heads] == ["/first" + target, target]


async def test_takes_a_body_without_length() -> None:
    async with Site(answering(length=None)) as site:
        sink = Buffer()
        assert (await get(site, sink=sink)).size == len(BODY)
    assert sink.hints == [None]


async def test_ignores_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Site(answering()) as site:
        assert (await get(site)).size == len(BODY)


async def test_nobody_listening() -> None:
    async with Site(answering()) as site:
        port = site.port
    async with fetcher_for(ports=[port]) as fetcher:
        with pytest.raises(FetchFailed):
            await fetcher.fetch(f"http://127.0.0.1:{port}/x?SECRET", Buffer())


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\nxx",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n",
        b"\0" * 99,
    ],
)
async def test_what_is_not_http_is_a_failed_fetch(reply: bytes) -> None:
    async def answer(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)

    async with Site(answer) as site:
        await refused(site, FetchFailed)


async def test_an_empty_body_is_refused() -> None:
    async with Site(answering(b"", length="0")) as site:
        assert "empty" in (await refused(site, FetchRejected)).public


async def test_an_announced_size_beyond_the_cap_is_refused_before_the_body() -> None:
    async with Site(answering(b"", length="99999999999")) as site:
        await refused(site, MediaTooLarge)
    assert len(site.heads) == 1


async def test_an_endless_body_stops_at_the_cap() -> None:
    async def answer(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            await writer.drain()

    async with Site(answer) as site:
        sink = Buffer(300_000)
        await refused(site, MediaTooLarge, sink=sink)
    assert len(sink.data) <= 300_000
    assert len(site.heads) == 1


async def test_bytes_behind_the_announced_length_are_never_taken() -> None:
    async with Site(answering(BODY, length="10")) as site:
        sink = Buffer()
        # Whether the client notices the surplus depends on how the packets fall; it may call the answer improper.
        with contextlib.suppress(FetchFailed):
            assert (await get(site, sink=sink)).size == 10
    assert bytes(sink.data) in (b"", BODY[:10])


async def test_transfers_are_bounded_altogether_and_a_host() -> None:
    running, peak = 0, {"all": 0}

    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        nonlocal running
        running += 1
        peak["all"] = max(peak["all"], running)
        await asyncio.sleep(0.05)
        running -= 1
        await answering(b"x")(site, target, writer)

    names = Names(a_test=[["127.0.0.1"]], b_test=[["127.0.0.1"]], c_test=[["127.0.0.1"]])
    limits = FetchLimits(transfers_max=3, transfers_per_host_max=2)
    async with Site(answer) as site, fetcher_for(site, names=names, limits=limits) as fetcher:

        async def one(host: str) -> None:
            await fetcher.fetch(site.url(host=host), Buffer())

        await asyncio.gather(*(one("a.test") for _ in range(5)))
        assert peak["all"] == 2
        peak["all"] = 0
        await asyncio.gather(*(one(host) for host in ("a.test", "b.test", "c.test") for _ in range(3)))
        assert peak["all"] == 3


async def test_too_many_waiting_is_told_at_once() -> None:
    limits = FetchLimits(transfers_max=1, waiting_max=1)
    async with Site(silent) as site, fetcher_for(site, limits=limits) as fetcher:
        tasks = [asyncio.ensure_future(fetcher.fetch(site.url(), Buffer())) for _ in range(2)]
        await site.asked.wait()
        with pytest.raises(QueueFull):
            await fetcher.fetch(site.url(), Buffer())
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*tasks, return_exceptions=True)
        )
        assert fetcher.fetcher._gates.known == (0, 0)


async def test_cancelling_ends_the_transfer_at_the_origin() -> None:
    gone = asyncio.Event()

    async def answer(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nx")
        await writer.drain()
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        gone.set()

    async with Site(answer) as site, fetcher_for(site) as fetcher:
        sink = Buffer()
        task = asyncio.ensure_future(fetcher.fetch(site.url(), sink))
        await sink.written.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 5)


SECRET_PAGES: dict[str, Answer] = {
    "failing": answering(b"SECRET", "503 Busy"),
    "refusing": answering(b"SECRET", "403 No", "X-Reason: SECRET\r\n"),
    "breaking": answering(b"SECRET", length="500"),
    "not HTTP": answering(b"", "SECRET\0"),
    "badly encoded": answering(b"SECRET", headers="Content-Encoding: gzip\r\n"),
    "silent": silent,
    "redirecting": redirecting("/x.jpg?token=SECRET", "http://10.0.0.1/?token=SECRET"),
    "redirecting with a password": redirecting("http://user:SECRET@127.0.0.1:PORT/"),
    "redirecting for ever": redirecting(*[f"/{step}?SECRET" for step in range(9)]),
}


@pytest.mark.parametrize("page", SECRET_PAGES)
async def test_no_query_string_password_or_payload_is_ever_logged_or_told(
    page: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    limits = FetchLimits(first_byte_seconds_max=0.2)
    async with Site(SECRET_PAGES[page]) as site, fetcher_for(site, limits=limits, redirects_max=4) as fetcher:
        site.keep_open = page.startswith("redirecting")
        with pytest.raises(FoveateError) as caught:
            await fetcher.fetch(site.url("/x.jpg?X-Amz-Signature=SECRET"), Buffer())
    for text in (caplog.text, caught.value.public, caught.value.detail, repr(caught.value), str(caught.value)):
        assert "SECRET" not in text
    assert ("trying once more" in caplog.text) == (page in ("failing", "breaking"))


async def test_neither_is_the_url_of_an_origin_that_cannot_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Site(answering()) as site:
        pass
    async with fetcher_for(site) as fetcher:
        for url in (site.url("/x.jpg?X-Amz-Signature=SECRET"), site.url(host="user:SECRET@127.0.0.1")):
            with pytest.raises(FoveateError) as caught:
                await fetcher.fetch(url, Buffer())
            for text in (caplog.text, caught.value.public, caught.value.detail):
                assert "SECRET" not in text
    assert "trying once more" in caplog.text
