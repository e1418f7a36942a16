"""Transfers that find, ask about and replace what was kept, against origins on sockets, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate

import pytest
from tests.unit.media.sites import Buffer, Names, Site, fetcher_for

from foveate.caches.media import MediaCache, Source
from foveate.core.errors import FetchFailed, FetchRejected, MediaTooLarge, UrlRefused
from foveate.core.memory import Slot
from foveate.decisions.freshness import NotKept
from foveate.media.fetch import Fetcher, FetchLimits
from foveate.media.policy import UrlPolicy
from foveate.media.shelf import Shelf

ONE, TWO = b"one " * 100, b"two " * 100
DATE = 1_800_000_000.0


class Origin:
    """Answers with the next of ``answers``, the last one again and again."""

    def __init__(self, *answers: str | tuple[str, bytes]) -> None:
        self._answers = [answer if isinstance(answer, tuple) else (answer, ONE) for answer in answers]

    async def __call__(self, _site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        head, body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        status, *fields = head.split("\n")
        body = b"" if status.startswith(("304", "302")) else body
        lengths = (
            [] if any(line.startswith(("Transfer-", "Content-Length", "Unframed")) for line in fields) else [len(body)]
        )
        lines = [f"HTTP/1.1 {status}", *fields, *(f"Content-Length: {length}" for length in lengths)]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)


@dataclass
class Keeper:
    """A fetcher with a shelf: keeps what may be kept, as the journey does. ``at`` is what its clocks say, in seconds from the start."""

    fetcher: Fetcher
    policy: UrlPolicy
    at: float = 0.0
    scope: str = ""
    shared: bool = True
    kept: dict[Slot, bytes] = field(default_factory=dict)
    places: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.cache = MediaCache(10_000, self.kept.__delitem__)

    async def fetch(
        self, url: str, *, bytes_max: int = 1 << 20, policy: UrlPolicy | None = None
    ) -> tuple[bytes, Source]:
        policy = policy or self.policy
        sink = Buffer(bytes_max)
        shelf = Shelf(self.cache, self.scope, self.shared, lambda: self.at, lambda: DATE + self.at)
        fetched = await self.fetcher.fetch(
            policy.parse(url), sink, policy=policy, redirects_max=3, tenant="t", shelf=shelf
        )
        if fetched.found is not None:
            assert not sink.data
            data = self.kept[fetched.found.lease.entry.slot]
            assert fetched.found.lease.entry.digest == fetched.digest
            fetched.found.lease.release()
            return data, "revalidated" if fetched.found.asked else "cache"
        if fetched.offer is not None:
            slot = Slot(next(self.places), len(sink.data))
            self.kept[slot] = bytes(sink.data)
            lease = self.cache.keep(fetched.offer.key, fetched.offer.entry(slot, fetched.digest, self.at), slot.size)
            assert lease is not None
            lease.release()
        return bytes(sink.data), "origin"

    def refused(self) -> dict[NotKept, int]:
        return {reason: number for reason, number in self.cache.counts().not_kept.items() if number}


@asynccontextmanager
async def keeping(site: Site, **options: object) -> AsyncIterator[Keeper]:
    async with fetcher_for(site, **options) as bound:  # type: ignore[arg-type]
        keeper = Keeper(bound.fetcher, bound.policy)
        yield keeper
        stats = keeper.cache.stats()
        assert (stats.pinned, stats.bytes) == (0, sum(slot.size for slot in keeper.kept))
        keeper.cache.clear()
        assert not keeper.kept


def conditions(site: Site) -> list[str]:
    """The conditional fields of each request that arrived."""
    return [", ".join(line for line in head.split("\r\n") if line.lower().startswith("if-")) for head in site.heads]


async def test_fresh_to_the_second_and_not_a_moment_longer() -> None:
    answers = Origin("200 OK\nCache-Control: max-age=60", ("200 OK\nCache-Control: max-age=60", TWO))
    async with Site(answers) as site, keeping(site) as keeper:
        for at, expected in ((0.0, (ONE, "origin")), (30.0, (ONE, "cache")), (59.9, (ONE, "cache"))):
            keeper.at = at
            assert await keeper.fetch(site.url()) == expected
        assert len(site.heads) == 1
        keeper.at = 60.0
        assert await keeper.fetch(site.url()) == (TWO, "origin")
        assert conditions(site) == ["", ""]


async def test_time_spent_elsewhere_is_taken_off() -> None:
    """``Age`` is what other caches had it for."""
    async with Site(Origin("200 OK\nCache-Control: max-age=60\nAge: 50")) as site, keeping(site) as keeper:
        for at, source in ((0.0, "origin"), (9.9, "cache"), (10.0, "origin")):
            keeper.at = at
            assert (await keeper.fetch(site.url()))[1] == source


async def test_the_time_that_an_answer_took_is_taken_off() -> None:
    async with Site(Origin("200 OK\nCache-Control: max-age=60")) as site, keeping(site) as keeper:
        served = site.answer

        async def slow(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
            keeper.at += 40.0
            await served(site, target, writer)

        site.answer = slow
        await keeper.fetch(site.url())
        keeper.at = 59.0
        assert (await keeper.fetch(site.url()))[1] == "cache"
        keeper.at = 60.0
        assert (await keeper.fetch(site.url()))[1] == "origin"


async def test_an_unchanged_body_gets_a_new_life_from_a_304() -> None:
    answers = Origin(
        '200 OK\nETag: "a"\nCache-Control: max-age=10', '304 Not Modified\nETag: "a"\nCache-Control: max-age=20'
    )
    async with Site(answers) as site, keeping(site) as keeper:
        await keeper.fetch(site.url())
        for at, source in ((10.0, "revalidated"), (29.0, "cache"), (30.0, "revalidated"), (49.0, "cache")):
            keeper.at = at
            assert await keeper.fetch(site.url()) == (ONE, source)
        assert conditions(site) == ["", 'If-None-Match: "a"', 'If-None-Match: "a"']
        # But for the condition, and what the client says of the connection, all requests are alike: so a `Vary` on anything else is met.
        assert len({re.sub("(If-None-Match|Connection): .*\r\n", "", head) for head in site.heads}) == 1
        assert keeper.cache.counts().unchanged == 2


async def test_a_date_is_asked_with_where_there_is_no_entity_tag() -> None:
    modified = formatdate(DATE - 100, usegmt=True)
    answers = Origin(f"200 OK\nDate: {formatdate(DATE, usegmt=True)}\nLast-Modified: {modified}", "304 Not Modified")
    async with Site(answers) as site, keeping(site) as keeper:
        assert [(await keeper.fetch(site.url()))[1] for _ in range(2)] == ["origin", "revalidated"]
        assert conditions(site) == ["", f"If-Modified-Since: {modified}"]


async def test_a_changed_body_takes_the_place_of_the_old_one() -> None:
    answers = Origin('200 OK\nETag: "a"', ('200 OK\nETag: "b"', TWO), "304 Not Modified")
    async with Site(answers) as site, keeping(site) as keeper:
        assert [await keeper.fetch(site.url()) for _ in range(3)] == [
            (ONE, "origin"),
            (TWO, "origin"),
            (TWO, "revalidated"),
        ]
        assert conditions(site) == ["", 'If-None-Match: "a"', 'If-None-Match: "b"']
        assert keeper.cache.counts().changed == 1
        assert len(keeper.kept) == 1


async def test_a_changed_body_that_may_not_be_kept_leaves_nothing() -> None:
    answers = Origin('200 OK\nETag: "a"', ("200 OK\nCache-Control: no-store", TWO))
    async with Site(answers) as site, keeping(site) as keeper:
        assert [await keeper.fetch(site.url()) for _ in range(2)] == [(ONE, "origin"), (TWO, "origin")]
        assert not keeper.kept


async def test_a_304_about_something_else_is_not_believed() -> None:
    """The body is asked for once more, without a condition; and a 304 to that is no answer."""
    answers = Origin('200 OK\nETag: "a"', '304 Not Modified\nETag: "b"', ("200 OK", TWO), "304 Not Modified")
    async with Site(answers) as site, keeping(site) as keeper:
        assert [await keeper.fetch(site.url()) for _ in range(2)] == [(ONE, "origin"), (TWO, "origin")]
        assert conditions(site) == ["", 'If-None-Match: "a"', ""]
        with pytest.raises(FetchRejected):
            await keeper.fetch(site.url())


async def test_a_304_that_forbids_keeping_is_obeyed_from_then_on() -> None:
    answers = Origin('200 OK\nETag: "a"', "304 Not Modified\nCache-Control: no-store", ("200 OK", TWO))
    async with Site(answers) as site, keeping(site) as keeper:
        await keeper.fetch(site.url())
        assert await keeper.fetch(site.url()) == (ONE, "revalidated")
        assert await keeper.fetch(site.url()) == (TWO, "origin")
        assert conditions(site)[2] == ""


@pytest.mark.parametrize("status", ["500 Oops", "503 Later", "429 Slow down"])
async def test_nothing_stale_stands_in_for_an_origin_that_fails(status: str) -> None:
    """Not even where ``stale-if-error`` would permit it. The entry stays, to be asked about later."""
    answers = Origin(
        '200 OK\nETag: "a"\nCache-Control: max-age=1, stale-if-error=600', status, status, "304 Not Modified"
    )
    async with Site(answers) as site, keeping(site) as keeper:
        await keeper.fetch(site.url())
        keeper.at = 2.0
        with pytest.raises(FetchFailed):
            await keeper.fetch(site.url())
        if status.startswith("429"):  # tried once, the others twice
            with pytest.raises(FetchFailed):
                await keeper.fetch(site.url())
        assert await keeper.fetch(site.url()) == (ONE, "revalidated")


@pytest.mark.parametrize("status", ["404 Gone", "403 No", "302 Elsewhere\nLocation: /b.png"])
async def test_an_answer_for_good_ends_what_was_kept(status: str) -> None:
    async with Site(Origin('200 OK\nETag: "a"', status)) as site, keeping(site) as keeper:
        await keeper.fetch(site.url())
        with pytest.raises((FetchRejected, FetchFailed)):
            await keeper.fetch(site.url())
        assert not keeper.kept


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("203 Transformed\nCache-Control: max-age=60", "status"),
        ("200 OK\nCache-Control: max-age=60\nUnframed: yes\nConnection: close", "unframed"),
        ("200 OK\nCache-Control: max-age=60\nSet-Cookie: a=b", "set_cookie"),
        ("200 OK\nCache-Control: max-age=60\nVary: Accept\nVary: *", "vary"),
    ],
)
async def test_what_is_not_kept(head: str, reason: NotKept) -> None:
    async with Site(Origin(head)) as site, keeping(site) as keeper:
        for _ in range(2):
            assert await keeper.fetch(site.url()) == (ONE, "origin")
        assert keeper.refused() == {reason: 2}


async def test_a_body_that_breaks_off_is_not_kept() -> None:
    async with (
        Site(Origin(f"200 OK\nCache-Control: max-age=60\nContent-Length: {len(ONE) + 1}")) as site,
        keeping(site) as keeper,
    ):
        with pytest.raises(FetchFailed):
            await keeper.fetch(site.url())
        assert not keeper.kept


async def test_a_compressed_body_is_kept_as_it_was_before() -> None:
    packed = ("200 OK\nCache-Control: max-age=60\nContent-Encoding: gzip\nVary: Accept-Encoding", gzip.compress(ONE))
    async with Site(Origin(packed)) as site, keeping(site) as keeper:
        assert [await keeper.fetch(site.url()) for _ in range(2)] == [(ONE, "origin"), (ONE, "cache")]


async def test_each_query_scheme_and_scope_has_its_own() -> None:
    async with Site(Origin("200 OK\nCache-Control: max-age=60")) as site, keeping(site) as keeper:
        for target in ("/a.png", "/a.png?", "/a.png?b", "/a.png?B", "/%61.png"):
            assert (await keeper.fetch(site.url(target)))[1] == "origin"
        # A fragment is no part of what is asked; nor does the spelling of the host matter.
        assert (await keeper.fetch(site.url("/a.png#x")))[1] == "cache"
        keeper.scope = "them"
        assert (await keeper.fetch(site.url()))[1] == "origin"


async def test_a_private_answer_is_one_tenants() -> None:
    async with Site(Origin("200 OK\nCache-Control: private, max-age=60")) as site, keeping(site) as keeper:
        assert [(await keeper.fetch(site.url()))[1] for _ in range(2)] == ["origin", "origin"]
        keeper.scope, keeper.shared = "us", False
        assert [(await keeper.fetch(site.url()))[1] for _ in range(2)] == ["origin", "cache"]


async def test_the_cap_of_whoever_asks_holds() -> None:
    answers = Origin('200 OK\nETag: "a"\nCache-Control: max-age=10', "304 Not Modified")
    async with Site(answers) as site, keeping(site) as keeper:
        await keeper.fetch(site.url())
        for at in (5.0, 15.0):
            keeper.at = at
            with pytest.raises(MediaTooLarge):
                await keeper.fetch(site.url(), bytes_max=len(ONE) - 1)
            assert (await keeper.fetch(site.url(), bytes_max=len(ONE)))[0] == ONE


async def test_no_name_is_looked_up_and_no_place_is_taken_for_what_is_fresh() -> None:
    names = Names(img_test=[["127.0.0.1"]])
    limits = FetchLimits(transfers_max=1, dead_host_failures=1)
    async with (
        Site(Origin("200 OK\nCache-Control: max-age=60")) as site,
        keeping(site, names=names, limits=limits) as keeper,
    ):
        url = site.url(host="img.test")
        await keeper.fetch(url)
        async with keeper.fetcher._gates.place("elsewhere", "t"):
            assert (await keeper.fetch(url))[1] == "cache"
        assert names.asked == ["img.test"]


async def test_what_came_from_a_network_that_is_closed_now_is_not_used() -> None:
    """Though the name resolves to a public address today, the bytes came from there; and the next fetch is judged as any other."""
    names = Names(img_test=[["127.0.0.1"], ["127.0.0.1"]])
    async with Site(Origin("200 OK\nCache-Control: max-age=60")) as site, keeping(site, names=names) as keeper:
        url = site.url(host="img.test")
        await keeper.fetch(url)
        closed = UrlPolicy.of(http_allowed=True, ports=[site.port])
        with pytest.raises(UrlRefused, match="loopback"):
            await keeper.fetch(url, policy=closed)
        assert not keeper.kept
        assert (len(site.heads), len(names.asked)) == (1, 2)


async def test_what_a_list_of_hosts_leaves_out_now_is_not_used() -> None:
    names = Names(img_test=[["127.0.0.1"]])
    async with Site(Origin("200 OK\nCache-Control: max-age=60")) as site, keeping(site, names=names) as keeper:
        await keeper.fetch(site.url(host="img.test"))
        only = UrlPolicy.of(http_allowed=True, ports=[site.port], only_hosts=["other.test"])
        with pytest.raises(UrlRefused) as caught:
            await keeper.fetch(site.url(host="img.test"), policy=only)
        assert "rule: host" in caught.value.public


async def test_an_older_answer_does_not_take_a_newer_one_s_place() -> None:
    """Two transfers that did not share (of two tiers, say): the one that asked first is done last."""
    gate = asyncio.Event()
    bodies = iter([(ONE, gate), (TWO, None)])

    async def answer(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        body, wait = next(bodies)
        writer.write(f"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        if wait is not None:
            await wait.wait()
        writer.write(body)

    async with Site(answer) as site, fetcher_for(site) as bound:
        keeper = Keeper(bound.fetcher, bound.policy)
        shelf = Shelf(keeper.cache, clock=lambda: keeper.at, wall=lambda: DATE + keeper.at)
        url = keeper.policy.parse(site.url())

        async def fetch() -> bool:
            sink = Buffer()
            fetched = await keeper.fetcher.fetch(
                url, sink, policy=keeper.policy, redirects_max=0, tenant="t", shelf=shelf
            )
            assert fetched.offer is not None
            slot = Slot(next(keeper.places), len(sink.data))
            keeper.kept[slot] = bytes(sink.data)
            lease = keeper.cache.keep(fetched.offer.key, fetched.offer.entry(slot, fetched.digest, 0.0), slot.size)
            if lease is not None:
                lease.release()
            return lease is not None

        first = asyncio.create_task(fetch())
        await site.asked.wait()
        keeper.at = 5.0
        assert await fetch()
        gate.set()
        assert not await first
        assert await keeper.fetch(site.url()) == (TWO, "cache")
