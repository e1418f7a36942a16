"""Passing requests on, and trying another server where one fails: with real HTTP servers that answer as a test tells them."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.engines.upstream.answering import (
    Upstream,
    answered,
    collected,
    cut,
    failing,
    picture,
    relaying,
    stream,
    text,
    work,
)

from foveate.core.clock import now
from foveate.core.errors import (
    StartupError,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnavailable,
    UpstreamUnusable,
)
from foveate.engines.port import RelayEvent
from foveate.engines.upstream.relay import UpstreamRelay
from foveate.runtime.arena import Arena

pytestmark = pytest.mark.asyncio


async def test_a_repeat_is_only_named_and_sent_again_where_it_is_no_longer_held() -> None:
    arena = Arena(1 << 20)
    gone = failing(400, "Cache miss for image at index 0 but data is not provided.")
    async with (
        Upstream(stream, stream, gone, stream).running() as upstream,
        relaying(upstream.config(), arena=arena) as relay,
    ):
        for _ in range(3):
            assert text(await answered(relay, work(picture(arena, b"png")))) == "Hello"
    parts = [body["messages"][0]["content"][0] for body in upstream.bodies]
    assert [part["image_url"] is None for part in parts] == [False, True, True, False]
    assert {part["uuid"] for part in parts} == {"foveate-1"}
    assert relay.servers[0].resent == 1


async def test_a_refusal_of_a_named_request_is_tried_whole_before_it_counts() -> None:
    arena = Arena(1 << 20)
    refused = failing(400, "temperature")
    async with Upstream(stream, refused).running() as upstream, relaying(upstream.config(), arena=arena) as relay:
        await answered(relay, work(picture(arena, b"png")))
        with pytest.raises(UpstreamRefused):
            await answered(relay, work(picture(arena, b"png")))
    assert len(upstream.bodies) == 3


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, UpstreamBusy), (503, UpstreamUnavailable), (500, UpstreamFailed), (401, UpstreamUnusable)],
)
async def test_what_another_server_may_do_better_goes_there(status: int, kind: type[Exception]) -> None:
    first, second = Upstream(failing(status, **{"Retry-After": "7"}), name="a"), Upstream(name="b")
    async with first.running(), second.running(), relaying(first.config(weight=10), second.config()) as relay:
        events = await answered(relay, work())
        assert (text(events), events[0].server) == ("Hello", "b")
    async with first.running(), relaying(first.config()) as relay:
        with pytest.raises(kind) as raised:
            await answered(relay, work())
        if status in (429, 503):
            assert raised.value.retry_after_seconds == 7  # type: ignore[attr-defined]
            with pytest.raises(UpstreamBusy):
                await answered(relay, work())
            assert len(first.bodies) == 2, "it was left alone the second time"
        if status == 401:
            assert b"theirs" not in raised.value.answer  # type: ignore[attr-defined]


async def test_a_request_that_servers_fail_on_does_not_go_through_all_of_them() -> None:
    servers = [Upstream(failing(500), name=name) for name in "abc"]
    async with (
        servers[0].running(),
        servers[1].running(),
        servers[2].running(),
        relaying(*(one.config() for one in servers)) as relay,
    ):
        with pytest.raises(UpstreamFailed):
            await answered(relay, work())
    assert sum(len(one.bodies) for one in servers) == 2


async def test_a_cut_before_the_first_output_goes_to_another_and_after_it_ends_the_request_once() -> None:
    first, second = Upstream(cut, name="a"), Upstream(name="b")
    async with first.running(), second.running(), relaying(first.config(weight=10), second.config()) as relay:
        first.chunks_before_cut = 1
        assert (await answered(relay, work()))[0].server == "b"
        first.chunks_before_cut = 2
        seen: list[RelayEvent] = []
        with pytest.raises(UpstreamFailed):
            await collected(relay, work(), seen)
        assert text(seen) == "Hel"
        assert len(second.bodies) == 1, "tokens were sent, so nobody else was asked"
        assert all(server.in_flight == server.outstanding == 0 for server in relay.servers)


async def test_a_dead_server_is_left_out_at_once_and_comes_back_by_a_look() -> None:
    first, second = Upstream(name="a"), Upstream(name="b")
    async with second.running(), first.running():
        config = first.config(weight=10), second.config()
        async with relaying(*config, recover_seconds=60.0) as relay:
            assert (await answered(relay, work()))[0].server == "a"
            await _stopped_and_back(first, relay)


async def _stopped_and_back(first: Upstream, relay: UpstreamRelay) -> None:
    first.healthy = False
    async with asyncio.timeout(5):
        while relay.servers[0].health.up:
            await asyncio.sleep(0.01)
    assert (await answered(relay, work()))[0].server == "b"
    assert relay.ready
    first.healthy = True
    async with asyncio.timeout(5):
        while not relay.servers[0].health.up:
            await asyncio.sleep(0.01)
    share = relay.servers[0].candidate((), relay.servers[0].health.since).share
    assert share == pytest.approx(0.1), "it is not run over"


async def test_a_server_that_lists_nonsense_does_not_end_the_looks_at_others() -> None:
    first, second = Upstream(name="a"), Upstream(name="b")
    first.listing = [b'{"more":' + b"[" * 100_000]
    async with first.running(), second.running(), relaying(first.config(), second.config()) as relay:
        assert "/v1/models cannot be read" in relay.report()[0].error
        second.healthy = False
        async with asyncio.timeout(10):
            while relay.servers[1].health.up:
                await asyncio.sleep(0.01)


async def test_a_server_that_cannot_be_connected_to_costs_no_client_an_answer() -> None:
    first, second = Upstream(name="a"), Upstream(name="b")
    async with second.running():
        async with first.running():
            config = first.config(weight=10), second.config()
        # Nobody listens at the first one's port any more.
        first.port = 0
        async with relaying(*config) as relay:
            assert (await answered(relay, work()))[0].server == "b"
            assert relay.models == ("m",)


async def test_a_start_without_any_server_says_which_and_why() -> None:
    async with Upstream().running() as upstream:
        config = upstream.config()
    with pytest.raises(StartupError, match=r"No upstream could be used\. a: cannot be connected to"):
        async with relaying(config, start_seconds_max=0.3):
            pass


async def test_embeddings_wait_until_the_server_was_found_to_agree() -> None:
    reasons = iter(["it answers otherwise"])
    asked: list[tuple[str, str]] = []

    async def check(server: str, model: str) -> str:
        asked.append((server, model))
        return next(reasons, "")

    async with Upstream().running() as upstream, relaying(upstream.config(mode="embeds")) as relay:
        assert not relay.ready, "nobody compared it yet"
        with pytest.raises(UpstreamUnavailable):
            await answered(relay, work())
        relay.hold_to(check)
        async with asyncio.timeout(10):
            while relay.report()[0].error == "":
                await asyncio.sleep(0.01)
        (report,) = relay.report()
        assert (report.up, report.healthy, report.error) == (False, True, "it answers otherwise")
        assert not relay.ready
        relay.servers[0].compared("it answers otherwise", now() - 3600)  # half a minute later
        async with asyncio.timeout(10):
            while not relay.ready:
                await asyncio.sleep(0.01)
        assert asked == [(report.name, "m")] * 2
        assert relay.report()[0].error == ""
        assert await answered(relay, work())
        relay.servers[0].failed(now(), "gone", gone=True)
        assert not relay.servers[0].agreed, "what comes back may be another model"
