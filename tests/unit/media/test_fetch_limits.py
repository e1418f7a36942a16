"""Every wait of a fetch has a limit of its own, its error says which, and hosts that do not answer are left alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from tests.unit.media.sites import (
    BODY,
    Answer,
    Bound,
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

from foveate.core.errors import FetchFailed, FetchRejected, FetchTimeout, MediaTooLarge
from foveate.media.addresses import IpAddress
from foveate.media.fetch import FetchLimits


async def head_by_drops(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
    """Send a header line now and then, but never the last."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while not writer.is_closing():
        writer.write(b"X-More: 1\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def body_by_drops(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def stalling(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nx")
    await writer.drain()
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("answer", "limits", "which"),
    [
        (silent, FetchLimits(first_byte_seconds_max=0.2), "fetch.first_byte_seconds"),
        (head_by_drops, FetchLimits(first_byte_seconds_max=0.3), "fetch.first_byte_seconds"),
        (stalling, FetchLimits(read_seconds_max=0.2), "fetch.read_seconds"),
        (silent, FetchLimits(total_seconds_max=0.3), "fetch.total_seconds"),
        (body_by_drops, FetchLimits(read_seconds_max=5, total_seconds_max=0.3), "fetch.total_seconds"),
    ],
)
async def test_every_kind_of_slowness_ends_once_by_its_own_limit(
    answer: Answer, limits: FetchLimits, which: str
) -> None:
    async with Site(answer) as site:
        error = await refused(site, FetchTimeout, limits=limits)
    assert which in error.public
    assert error.limit_name == which
    assert error.limit in (0.2, 0.3)
    assert error.actual is not None
    assert error.limit <= error.actual + 0.01 < error.limit + 15
    assert "127.0.0.1" not in error.public
    assert len(site.heads) == 1


async def test_a_slow_head_does_not_count_as_silence_of_the_body() -> None:
    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.4)
        await answering()(site, target, writer)

    async with Site(answer) as site:
        limits = FetchLimits(read_seconds_max=0.1, first_byte_seconds_max=10)
        assert (await get(site, limits=limits)).size == len(BODY)


async def test_a_slow_lookup_is_a_limit_of_its_own() -> None:
    class Slow(Names):
        async def resolve(self, host: str, port: int, *, tenant: str = "") -> list[IpAddress]:
            await asyncio.sleep(30)
            return await super().resolve(host, port)

    limits = FetchLimits(dns_seconds_max=0.1, dead_host_failures=1)
    async with fetcher_for(names=Slow(), limits=limits) as fetcher:
        for _ in range(3):  # it is the name server that does not answer, not the host
            with pytest.raises(FetchTimeout) as caught:
                await fetcher.fetch("http://slow.test/", Buffer())
            assert caught.value.limit_name == "fetch.dns_seconds"
            assert caught.value.actual is not None
            assert caught.value.actual >= 0.1


@pytest.fixture
def full_port() -> Iterator[int]:
    """A port whose backlog is full: connections to it are neither taken nor refused."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = listener.getsockname()[1]
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
        fillers.append(filler)
    yield port
    for filler in fillers:
        filler.close()
    listener.close()


async def test_a_connection_that_nobody_takes(full_port: int) -> None:
    limits = FetchLimits(connect_seconds_max=0.2)
    async with fetcher_for(ports=[full_port], limits=limits) as fetcher:
        with pytest.raises(FetchTimeout) as caught:
            await fetcher.fetch(f"http://127.0.0.1:{full_port}/", Buffer())
    assert caught.value.limit_name == "fetch.connect_seconds"


async def test_the_total_holds_over_all_hops() -> None:
    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await redirecting(*[f"/{step}" for step in range(50)])(site, target, writer)

    async with Site(answer) as site:
        limits = FetchLimits(total_seconds_max=0.7)
        error = await refused(site, FetchTimeout, limits=limits, redirects_max=50)
        assert error.limit_name == "fetch.total_seconds"
        assert 1 < len(site.heads) < 5


# ---------------------------------------------------------------------------------------------------------- dead hosts


def counting(limit: int = 2, seconds: float = 60.0) -> FetchLimits:
    return FetchLimits(dead_host_failures=limit, dead_host_seconds=seconds, first_byte_seconds_max=0.1)


async def fails(fetcher: Bound, url: str) -> FetchFailed | FetchTimeout:
    with pytest.raises((FetchFailed, FetchTimeout)) as caught:
        await fetcher.fetch(url, Buffer())
    assert isinstance(caught.value, FetchFailed | FetchTimeout)
    return caught.value


async def test_a_host_that_does_not_answer_is_refused_at_once_and_can_be_tried_again_later() -> None:
    async with Site(silent) as site, fetcher_for(site, limits=counting()) as fetcher:
        await fails(fetcher, site.url())
        await fails(fetcher, site.url("/other"))
        error = await fails(fetcher, site.url())
        assert isinstance(error, FetchFailed)
        assert error.retryable
        assert error.limit_name == "fetch.dead_host_failures"
        assert error.retry_after_seconds is not None
        assert 0 < error.retry_after_seconds <= 60
        assert len(site.heads) == 2


async def test_one_probe_tells_that_a_host_is_back() -> None:
    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        await (silent if len(site.heads) <= 2 else answering())(site, target, writer)

    async with Site(answer) as site, fetcher_for(site, limits=counting(seconds=0.3)) as fetcher:
        await fails(fetcher, site.url())
        await fails(fetcher, site.url())
        await fails(fetcher, site.url())
        await asyncio.sleep(0.4)
        ends = await asyncio.gather(*(fetcher.fetch(site.url(), Buffer()) for _ in range(5)), return_exceptions=True)
        # Whoever came while the probe ran was refused; nobody else reached the host before it was known to be back.
        assert sum(not isinstance(end, BaseException) for end in ends) == 1
        assert len(site.heads) == 3
        for _ in range(3):
            await fetcher.fetch(site.url(), Buffer())


async def test_a_refused_connection_counts_with_its_retry() -> None:
    async with Site(answering()) as site:
        port = site.port
    async with fetcher_for(ports=[port], limits=counting(limit=2)) as fetcher:
        await fails(fetcher, f"http://127.0.0.1:{port}/")
        error = await fails(fetcher, f"http://127.0.0.1:{port}/")
    assert error.limit_name == "fetch.dead_host_failures"


async def test_what_an_origin_says_is_never_a_sign_of_death() -> None:
    patient = FetchLimits(dead_host_failures=1, dead_host_seconds=60, read_seconds_max=0.1)
    answers: list[tuple[Answer, type[Exception]]] = [
        (answering(b"x", "503 Busy"), FetchFailed),
        (answering(b"x", "404 Not Found"), FetchRejected),
        (answering(b"x", "429 Too Many Requests"), FetchFailed),
        (stalling, FetchTimeout),
        (answering(length="99999999999"), MediaTooLarge),
        (answering(b"", length="0"), FetchRejected),
    ]
    for answer, kind in answers:
        async with Site(answer) as site, fetcher_for(site, limits=patient) as fetcher:
            for _ in range(3):
                with pytest.raises(kind) as caught:
                    await fetcher.fetch(site.url(), Buffer())
                assert getattr(caught.value, "limit_name", None) != "fetch.dead_host_failures"


async def test_a_slow_page_cannot_declare_a_host_dead_that_answers_others() -> None:
    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        await (silent if target == "/slow" else answering())(site, target, writer)

    async with Site(answer) as site, fetcher_for(site, limits=counting(limit=1)) as fetcher:
        for _ in range(3):
            assert (await fetcher.fetch(site.url(), Buffer())).size == len(BODY)
            assert isinstance(await fails(fetcher, site.url("/slow")), FetchTimeout)


async def test_without_tls_there_is_no_life() -> None:
    async with Site(answering()) as site, fetcher_for(site, limits=counting(limit=1)) as fetcher:
        url = site.url().replace("http:", "https:")
        await fails(fetcher, url)
        assert (await fails(fetcher, url)).limit_name == "fetch.dead_host_failures"


async def test_running_out_of_ones_own_time_says_nothing_about_the_host() -> None:
    async with Site(silent) as site:
        limits = FetchLimits(dead_host_failures=1, first_byte_seconds_max=9)
        async with fetcher_for(site, limits=limits) as fetcher:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await fetcher.fetch(site.url(), Buffer())
        assert len(site.heads) == 3


async def test_another_port_is_another_host() -> None:
    async with (
        Site(silent) as dead,
        Site(answering()) as alive,
        fetcher_for(dead, alive, limits=counting(limit=1)) as fetcher,
    ):
        await fails(fetcher, dead.url())
        assert (await fetcher.fetch(alive.url(), Buffer())).size == len(BODY)
