"""The fetcher against real sockets on 127.0.0.1: where it connects, what it sends, and what it makes of every kind of
origin.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path

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
    server_tls,
    silent,
)

from foveate.core.errors import (
    FetchFailed,
    FetchRejected,
    FoveateError,
    MediaTooLarge,
    QueueFull,
    UrlInvalid,
    UrlRefused,
)
from foveate.media.fetch import FetchLimits
from foveate.media.transport import Progress

# --------------------------------------------------------------------------------------------------------------- plain
# fetches


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


async def test_reuses_a_connection_to_the_same_checked_address_only() -> None:
    names = Names(img_test=[["127.0.0.1"]], other_test=[["127.0.0.1"], ["127.0.0.2"]])
    async with Site(answering()) as site:
        site.keep_open = True
        async with fetcher_for(site, names=names) as fetcher:
            for _ in range(3):
                await fetcher.fetch(site.url(host="img.test"), Buffer())
            assert site.connections == 1
            await fetcher.fetch(site.url(host="other.test"), Buffer())
            # The name now has another address, where nobody listens: the open connection to the first must not be
            # used for it.
            with pytest.raises(FetchFailed):
                await fetcher.fetch(site.url(host="other.test"), Buffer())


# -------------------------------------------------------------------------------------------------------- where it may
# connect


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "[::1]", "2130706433"])
async def test_connects_nowhere_when_the_address_is_refused(host: str) -> None:
    async with Site(answering()) as site, fetcher_for(site, private_networks=[]) as fetcher:
        with pytest.raises((UrlRefused, UrlInvalid)):
            await fetcher.fetch(site.url(host=host), Buffer())
    assert site.connections == 0


async def test_any_refused_answer_refuses_the_name() -> None:
    names = Names(evil_test=[["93.184.216.34", "127.0.0.1"]])
    async with Site(answering()) as site, fetcher_for(site, names=names, private_networks=[]) as fetcher:
        with pytest.raises(UrlRefused) as caught:
            await fetcher.fetch(site.url(host="evil.test"), Buffer())
    assert "loopback" in caught.value.public
    assert "127.0.0.1" not in caught.value.public
    assert site.connections == 0


async def test_resolves_once_and_connects_to_the_checked_address() -> None:
    names = Names(rebind_test=[["127.0.0.1"], ["10.0.0.1"]])
    async with Site(answering()) as site, fetcher_for(site, names=names) as fetcher:
        await fetcher.fetch(site.url(host="Rebind.test."), Buffer())
        assert names.asked == ["rebind.test"]
        assert f"Host: rebind.test:{site.port}\r\n" in site.heads[0]
        with pytest.raises(UrlRefused):
            await fetcher.fetch(site.url(host="rebind.test"), Buffer())
    assert len(site.heads) == 1


async def test_tries_the_next_checked_address_when_one_does_not_answer() -> None:
    names = Names(two_test=[["127.0.0.9", "127.0.0.1"]])
    async with Site(answering()) as site, fetcher_for(site, names=names) as fetcher:
        assert (await fetcher.fetch(site.url(host="two.test"), Buffer())).size == len(BODY)


async def test_the_system_resolver_is_judged_too() -> None:
    async with Site(answering()) as site, fetcher_for(site) as fetcher:
        assert (await fetcher.fetch(site.url(host="localhost"), Buffer())).size == len(BODY)


async def test_an_unknown_name_is_a_failed_fetch() -> None:
    async with Site(answering()) as site, fetcher_for(site, names=Names()) as fetcher:
        with pytest.raises(FetchFailed) as caught:
            await fetcher.fetch(site.url(host="gone.test"), Buffer())
    assert "resolved" in caught.value.public


# ------------------------------------------------------------------------------------------------------------------
# redirects


@pytest.mark.parametrize(
    "location", ["/img/b.png", "b.png", "//127.0.0.1:PORT/b.png", "http://127.0.0.1:PORT/b%27?x=%2F#f"]
)
async def test_follows_ordinary_redirects(location: str) -> None:
    async with Site(redirecting(location)) as site:
        fetched = await get(site)
    assert (fetched.size, fetched.redirects) == (len(BODY), 1)
    assert len(site.heads) == 2


async def test_a_redirect_target_keeps_its_bytes() -> None:
    async with Site(redirecting("/b%27b?s=a%2Fb%2Bc")) as site:
        await get(site)
    assert site.heads[1].startswith("GET /b%27b?s=a%2Fb%2Bc HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "location",
    [
        "http://10.0.0.1:PORT/x",
        "http://[::ffff:10.0.0.1]:PORT/x",
        "//169.254.169.254:PORT/latest",
        "file:///etc/passwd",
        "http://127.0.0.1:22/",
        "http://2130706433:PORT/",
        "http://u@127.0.0.1:PORT/",
    ],
)
async def test_every_hop_passes_the_whole_policy(location: str) -> None:
    async with Site(redirecting("/one", "/two", location)) as site:
        with pytest.raises((UrlRefused, UrlInvalid)):
            await get(site)
    assert len(site.heads) == 3


async def test_redirects_end() -> None:
    async with Site(redirecting(*[f"/{step}" for step in range(20)])) as site:
        error = await refused(site, FetchRejected, redirects_max=4)
        assert "redirects" in error.public
        assert (error.limit_name, error.limit, error.actual) == ("max_redirects", 4, 5)
        assert len(site.heads) == 5
    async with Site(redirecting("/b", "/a.png", "/b")) as site:
        error = await refused(site, FetchRejected)
        assert "circle" in error.public
        assert error.limit_name is None
        assert len(site.heads) == 2


# ----------------------------------------------------------------------------------------------------------------- bad
# origins


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


# --------------------------------------------------------------------------------------------------------------- time,
# places, logs


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


# ----------------------------------------------------------------------------------------------------------------- TLS


async def test_tls_is_checked_against_the_name_not_the_address(certificate: Path) -> None:
    names = Names(img_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with (
        Site(answering(), server_tls(certificate)) as site,
        fetcher_for(site, names=names, tls=trusting) as fetcher,
    ):
        assert (await fetcher.fetch(site.url(host="img.test"), Buffer())).size == len(BODY)
        assert site.server_names == ["img.test"]
        with pytest.raises(FetchFailed) as caught:
            await fetcher.fetch(site.url(host="other.test"), Buffer())
        assert "TLS" in caught.value.public
    assert len(site.heads) == 1


async def test_an_untrusted_certificate_is_refused(certificate: Path) -> None:
    names = Names(img_test=[["127.0.0.1"]])
    async with Site(answering(), server_tls(certificate)) as site, fetcher_for(site, names=names) as fetcher:
        with pytest.raises(FetchFailed):
            await fetcher.fetch(site.url(host="img.test"), Buffer())
    assert not site.heads


async def test_https_never_falls_back_to_http(certificate: Path) -> None:
    names = Names(img_test=[["127.0.0.1"]])
    trusting = ssl.create_default_context(cafile=str(certificate))
    site = Site(redirecting("http://img.test:PORT/x"), server_tls(certificate))
    async with site, fetcher_for(names=names, tls=trusting, ports=range(1024, 65536)) as fetcher:
        with pytest.raises(UrlRefused) as caught:
            await fetcher.fetch(site.url(host="img.test"), Buffer())
    assert "downgrade" in caught.value.public
