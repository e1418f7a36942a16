"""Both resolvers: addresses as values, errors as OSError, nothing kept, threads given back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from tests.unit.media.name_server import NameServer, name_server
from tests.unit.media.sites import BODY, Buffer, Site, answering, fetcher_for

from foveate.core.errors import FetchTimeout, StartupError, UrlRefused
from foveate.media.fetch import FetchLimits
from foveate.media.resolve import ServerResolver, SystemResolver, parse_servers


async def test_resolves_without_duplicates() -> None:
    resolver = SystemResolver()
    found = await resolver.resolve("localhost", 80)
    assert ip_address("127.0.0.1") in found
    assert len(found) == len(set(found))
    await resolver.aclose()


async def test_scopes_and_failures_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1%eth0", 80, 0, 2))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: answers)
    resolver = SystemResolver(threads=1)
    assert await resolver.resolve("h.test", 80) == [ip_address("fe80::1")]

    def fail(*_args: object, **_options: object) -> None:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OSError, match="no such name"):
        await resolver.resolve("h.test", 80)
    await resolver.aclose()
    with pytest.raises(RuntimeError):
        await resolver.resolve("h.test", 80)


class StuckNames:
    """getaddrinfo as it is with name servers that never answer: names that begin with ``dead`` take until ``end``."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, *_args: object, **_options: object) -> list[object]:
        self.asked.append(host)
        if host.startswith("dead"):
            self.end.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckNames]:
    names = StuckNames()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    yield names
    names.end.set()


async def given_up(resolver: SystemResolver, host: str, tenant: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await resolver.resolve(host, 80, tenant=tenant)


async def test_a_name_server_that_never_answers_keeps_no_other_name_waiting(stuck: StuckNames) -> None:
    resolver = SystemResolver(threads=8)
    for number in range(20):
        await given_up(resolver, f"dead{number}.evil.test", "a")
    assert len(stuck.asked) == 2, "given up, they still have their threads"
    async with asyncio.timeout(20):
        assert await resolver.resolve("img.good.test", 80, tenant="a") == [ip_address("127.0.0.1")]
    stuck.end.set()
    async with asyncio.timeout(20):
        await resolver.resolve("live.evil.test", 80, tenant="a")
    assert len(stuck.asked) == 4, "who gave up while waiting for a thread was never looked up"
    await resolver.aclose()


async def test_a_tenant_with_many_dead_name_servers_leaves_threads_to_others(stuck: StuckNames) -> None:
    resolver = SystemResolver(threads=8)
    for number in range(20):
        await given_up(resolver, f"dead.evil{number}.test", "a")
    assert len(stuck.asked) == 6
    async with asyncio.timeout(20):
        assert await resolver.resolve("img.good.test", 80, tenant="b") == [ip_address("127.0.0.1")]
    stuck.end.set()
    await resolver.aclose()


# ------------------------------------------------------------------------------------------------------- named servers


def asking(server: NameServer) -> ServerResolver:
    return ServerResolver([("127.0.0.1", server.port)])


async def test_asks_the_named_server_for_both_families_once_a_lookup() -> None:
    async with name_server(img_test=[["192.0.2.1", "2001:db8::1", "192.0.2.1"], ["192.0.2.2"]]) as server:
        resolver = asking(server)
        assert await resolver.resolve("img.test", 80) == [ip_address("192.0.2.1"), ip_address("2001:db8::1")]
        assert sorted(server.asked) == [("img.test", "A"), ("img.test", "AAAA")]
        assert await resolver.resolve("img.test", 80) == [ip_address("192.0.2.2")], "nothing is kept"
        assert len(server.asked) == 4


async def test_a_name_that_is_unknown_or_half_answered_has_no_address() -> None:
    async with name_server(empty_test=[[]]) as server:
        server.broken.add("broken.test")
        for name in ("gone.test", "empty.test", "broken.test"):
            with pytest.raises(OSError):
                await asking(server).resolve(name, 80)


async def test_the_hosts_file_is_not_read() -> None:
    async with name_server() as server:
        with pytest.raises(OSError):
            await asking(server).resolve("localhost.localdomain", 80)
        assert server.asked


async def test_a_name_whose_answer_changes_is_judged_anew_and_connected_to_where_it_was_judged() -> None:
    async with Site(answering()) as site, name_server(rebind_test=[["127.0.0.1"], ["10.0.0.1"]]) as server:
        async with fetcher_for(site, names=asking(server)) as fetcher:
            url = site.url(host="rebind.test")
            assert (await fetcher.fetch(url, Buffer())).size == len(BODY)
            assert sorted(server.asked) == [("rebind.test", "A"), ("rebind.test", "AAAA")]
            with pytest.raises(UrlRefused) as caught:
                await fetcher.fetch(url, Buffer())
        assert "private" in caught.value.public
        assert "10.0.0.1" not in caught.value.public
        assert site.connections == 1


@pytest.mark.parametrize("hidden", ["127.0.0.1", "::1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "fd00:ec2::254"])
async def test_one_bad_address_among_good_ones_refuses_the_name(hidden: str) -> None:
    async with Site(answering()) as site, name_server(mixed_test=[["93.184.216.34", hidden]]) as server:
        async with fetcher_for(site, names=asking(server), private_networks=[]) as fetcher:
            with pytest.raises(UrlRefused):
                await fetcher.fetch(site.url(host="mixed.test"), Buffer())
        assert site.connections == 0


async def test_a_silent_server_runs_into_the_lookups_limit() -> None:
    async with name_server() as server:
        server.silent.add("slow.test")
        limits = FetchLimits(dns_seconds_max=0.2)
        async with fetcher_for(names=asking(server), limits=limits) as fetcher:
            with pytest.raises(FetchTimeout) as caught:
                await fetcher.fetch("http://slow.test/", Buffer())
    assert caught.value.limit_name == "fetch.dns_seconds"


def test_servers_are_written_with_or_without_port() -> None:
    texts = ["10.0.0.53", "10.0.0.53:5353", "[fd00::53]:53", "[fd00::53]", "fd00::53"]
    assert parse_servers(texts) == [
        ("10.0.0.53", 53),
        ("10.0.0.53", 5353),
        ("fd00::53", 53),
        ("fd00::53", 53),
        ("fd00::53", 53),
    ]


@pytest.mark.parametrize("text", ["dns.example", "10.0.0.53:0", "10.0.0.53:99999", "10.0.0", "udp://10.0.0.53", ""])
def test_what_is_no_name_server_stops_the_start(text: str) -> None:
    with pytest.raises(StartupError, match=r"fetch\.dns_servers"):
        parse_servers([text])
