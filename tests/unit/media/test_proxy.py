"""An explicit proxy gets names, after they were judged as names; its own trouble is told apart from an origin's."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.media.sites import (
    BODY,
    Buffer,
    Names,
    Site,
    answering,
    fetcher_for,
    redirecting,
    server_tls,
)

from foveate.core.errors import FetchFailed, FetchRejected, StartupError, UrlRefused
from foveate.media.fetch import FetchLimits
from foveate.media.proxy import Proxy


@asynccontextmanager
async def tunnel(target_port: int, *, status: str = "200 OK") -> AsyncIterator[tuple[Proxy, list[str]]]:
    """A proxy that answers CONNECT with ``status`` and pipes to ``target_port``; and the heads it got."""
    heads: list[str] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # one side went away
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())
        if not status.startswith("200"):
            writer.close()
            return
        origin_reader, origin_writer = await asyncio.open_connection("127.0.0.1", target_port)
        await asyncio.gather(pipe(reader, origin_writer), pipe(origin_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Proxy("127.0.0.1", server.sockets[0].getsockname()[1], "Basic c2VjcmV0"), heads
    finally:
        server.close()


async def test_http_goes_through_the_proxy_with_the_url_byte_for_byte() -> None:
    async with Site(answering()) as proxy:
        used = Proxy.of(f"http://us%40er:SECRET@127.0.0.1:{proxy.port}/")
        async with fetcher_for(names=Names(), proxy=used) as fetcher:
            target = "/a%27b.jpg?X-Sig=a%2Fb%2Bc%3D"
            fetched = await fetcher.fetch(f"http://img.example{target}", Buffer())
    assert fetched.size == len(BODY)
    lines = proxy.heads[0].split("\r\n")
    assert lines[0] in (f"GET http://img.example{target} HTTP/1.1", f"GET http://img.example:80{target} HTTP/1.1")
    assert "Host: img.example" in lines
    assert "Proxy-Authorization: Basic " + base64.b64encode(b"us@er:SECRET").decode() in lines


async def test_https_is_tunnelled_and_checked_against_the_name(certificate: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with Site(answering(), server_tls(certificate)) as site, tunnel(site.port) as (proxy, heads):
        async with fetcher_for(site, names=Names(), proxy=proxy, tls=trusting) as fetcher:
            url = f"https://img.test:{site.port}/a.png"
            assert (await fetcher.fetch(url, Buffer())).size == len(BODY)
            with pytest.raises(FetchFailed, match="other"):
                await fetcher.fetch(url.replace("img", "other"), Buffer())
        assert site.server_names == ["img.test", "other.test"]
        assert heads[0].startswith(f"CONNECT img.test:{site.port} HTTP/1.1\r\n")
        assert "Proxy-Authorization: Basic c2VjcmV0\r\n" in heads[0]
        assert len(site.heads) == 1
        assert "c2VjcmV0" not in site.heads[0], "the proxy's password is the proxy's only"


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/",
        "http://[::ffff:127.0.0.1]/",
        "http://localhost/",
        "http://db.localhost/",
        "http://metadata.google.internal/",
        "http://instance-data/",
        "http://redis/",
        "http://printer.local/",
        "http://vault.corp/",
        "http://router.home.arpa/",
    ],
)
async def test_names_and_addresses_of_a_local_network_never_reach_the_proxy(url: str) -> None:
    async with Site(answering()) as proxy:
        used = Proxy("127.0.0.1", proxy.port)
        async with fetcher_for(names=Names(), proxy=used, private_networks=[]) as fetcher:
            with pytest.raises(UrlRefused):
                await fetcher.fetch(url, Buffer())
    assert proxy.connections == 0


async def test_openings_and_restrictions_hold_for_names() -> None:
    async with Site(answering()) as proxy:
        used = Proxy("127.0.0.1", proxy.port)
        opened = {"hosts": ["minio", "*.corp"], "private_networks": ["10.0.0.0/8"], "only_hosts": ["minio", "*.corp"]}
        async with fetcher_for(names=Names(), proxy=used, **opened) as fetcher:
            for host in ("minio", "img.corp"):
                await fetcher.fetch(f"http://{host}/", Buffer())
            for host in ("10.1.2.3", "img.example"):
                with pytest.raises(UrlRefused, match=host):
                    await fetcher.fetch(f"http://{host}/", Buffer())
    assert proxy.connections == 2


async def test_redirects_through_the_proxy_are_judged_too() -> None:
    async with Site(redirecting("http://vault.internal/")) as proxy:
        async with fetcher_for(names=Names(), proxy=Proxy("127.0.0.1", proxy.port)) as fetcher:
            with pytest.raises(UrlRefused, match=r"vault\.internal"):
                await fetcher.fetch("http://img.example/", Buffer())
        assert len(proxy.heads) == 1


async def test_only_the_proxys_own_name_is_resolved() -> None:
    names = Names(proxy_test=[["127.0.0.1"]])
    async with Site(answering()) as proxy, fetcher_for(names=names, proxy=Proxy("proxy.test", proxy.port)) as fetcher:
        await fetcher.fetch("http://img.example/", Buffer())
    assert names.asked == ["proxy.test"]


@pytest.mark.parametrize("status", ["407 No", "403 No", "502 No"])
async def test_a_refusing_proxy_is_named_as_such(certificate: Path, status: str) -> None:
    async with tunnel(9, status=status) as (proxy, _), fetcher_for(names=Names(), proxy=proxy) as fetcher:
        with pytest.raises(FetchFailed) as caught:
            await fetcher.fetch("https://img.test/", Buffer())
    assert "proxy" in caught.value.public
    assert caught.value.retryable


async def test_a_proxy_that_wants_a_password_or_is_gone() -> None:
    async with Site(answering(b"", "407 Who are you")) as proxy:
        async with fetcher_for(names=Names(), proxy=Proxy("127.0.0.1", proxy.port)) as fetcher:
            with pytest.raises(FetchFailed) as caught:
                await fetcher.fetch("http://img.example/", Buffer())
        assert "credentials" in caught.value.public
    limits = FetchLimits(dead_host_failures=1)
    async with fetcher_for(names=Names(), proxy=Proxy("127.0.0.1", proxy.port), limits=limits) as fetcher:
        for _ in range(2):
            with pytest.raises(FetchFailed) as caught:
                await fetcher.fetch("http://img.example/", Buffer())
            assert "proxy" in caught.value.public, "its absence is not the origin's"


async def test_without_a_proxy_407_is_the_origins_word() -> None:
    async with Site(answering(b"", "407 Who are you")) as site, fetcher_for(site) as fetcher:
        with pytest.raises(FetchRejected):
            await fetcher.fetch(site.url(), Buffer())


async def test_its_password_is_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Site(answering(b"", "503 No")) as site:
        used = Proxy.of(f"http://user:SECRET@127.0.0.1:{site.port}")
        async with fetcher_for(names=Names(), proxy=used) as fetcher:
            with pytest.raises(FetchFailed) as caught:
                await fetcher.fetch("http://img.example/?QUERY", Buffer())
    async with fetcher_for(names=Names(), proxy=used) as fetcher:
        with pytest.raises(FetchFailed) as gone:
            await fetcher.fetch("http://img.example/?QUERY", Buffer())
    coded = base64.b64encode(b"user:SECRET").decode()
    for error in (caught.value, gone.value):
        for text in (caplog.text, error.public, error.detail, repr(error), repr(used), str(used), used.url):
            for secret in ("SECRET", coded, "QUERY"):
                assert secret not in text
    assert "trying once more" in caplog.text


def test_is_read_with_and_without_credentials() -> None:
    assert Proxy.of("http://proxy.corp:3128") == Proxy("proxy.corp", 3128)
    assert Proxy.of("HTTP://[fd00::1]:3128/").url == "http://[fd00::1]:3128"
    assert Proxy.of("http://u:p%3A@10.0.0.1:80").authorization == "Basic " + base64.b64encode(b"u:p:").decode()


@pytest.mark.parametrize(
    "text",
    [
        "172.25.239.45:33080",
        "proxy.corp",
        "http://proxy.corp",
        "http://proxy.corp:0",
        "http://proxy.corp:99999",
        "http://proxy.corp:3128/path",
        "http://proxy.corp:3128?x",
        "https://proxy.corp:3128",
        "socks5://proxy.corp:1080",
        "http://:3128",
        "http://a b:3128",
        "http://user:SECRET@:3128",
        "http://user:SECRET@0x7f.1:3128",
    ],
)
def test_what_is_no_proxy_stops_the_start_without_being_repeated(text: str) -> None:
    with pytest.raises(StartupError, match=r"fetch\.proxy") as caught:
        Proxy.of(text)
    assert "SECRET" not in caught.value.public
