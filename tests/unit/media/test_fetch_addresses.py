"""Where a fetch connects: to checked addresses only, at every redirect too, and by TLS only to whom the URL names. Against real sockets."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.unit.media.sites import (
    BODY,
    Buffer,
    Names,
    Site,
    answering,
    fetcher_for,
    get,
    redirecting,
    refused,
    server_tls,
)

from foveate.core.errors import FetchFailed, FetchRejected, UrlInvalid, UrlRefused


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
