"""Passing requests on, to real HTTP servers that answer as a test tells them."""

from __future__ import annotations

import asyncio
import base64
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web
from tests.unit.engines.upstream.answering import (
    Upstream,
    answered,
    collected,
    cut,
    endless,
    failing,
    in_pieces,
    payloads,
    picture,
    relaying,
    stream,
    text,
    work,
)

from foveate.core.clock import now
from foveate.core.errors import (
    MediaNotHeld,
    QueueFull,
    StartupError,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnavailable,
    UpstreamUnusable,
)
from foveate.engines.port import RelayedMedia, RelayEvent
from foveate.engines.upstream.body import SLICE_BYTES, WHOLE_BYTES_MAX
from foveate.engines.upstream.relay import UpstreamRelay
from foveate.runtime.arena import Arena

pytestmark = pytest.mark.asyncio


async def test_a_stream_keeps_its_bytes_and_goes_by_our_names() -> None:
    async with Upstream().running() as upstream, relaying(upstream.config(models={"mine": "m"})) as relay:
        asked = work(model="mine")
        events = await answered(relay, asked)
    assert text(events) == "Hello"
    assert {(one["id"], one["model"]) for one in payloads(events)} == {(asked.request_id, "mine")}
    assert not any("usage" in one for one in payloads(events)), "it was not asked for"
    assert [span.stage for span in events[0].spans] == ["llm_queue", "upstream"]
    assert (events[0].server, events[-1].last) == ("a", True)
    usage = events[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens, usage.queue_ms) == (30, 2, 8, 1.5)
    assert upstream.bodies[0]["model"] == "m"
    assert upstream.bodies[0]["stream_options"] == {"include_usage": True}
    assert upstream.headers[0]["X-Request-Id"] == asked.request_id.removeprefix("chatcmpl-")


async def test_usage_that_was_asked_for_is_passed_on() -> None:
    async with Upstream().running() as upstream, relaying(upstream.config()) as relay:
        events = await answered(relay, work(usage=True))
    assert payloads(events)[-1]["usage"]["completion_tokens"] == 2


async def test_the_key_and_the_salt_go_where_they_belong() -> None:
    async with Upstream().running() as upstream, relaying(upstream.config(api_key="sesame")) as relay:
        await answered(relay, work(salt="tenant"))
    assert upstream.headers[0]["Authorization"] == "Bearer sesame"
    assert upstream.bodies[0]["cache_salt"] == "tenant"


@pytest.mark.parametrize("size", [1, SLICE_BYTES, WHOLE_BYTES_MAX, WHOLE_BYTES_MAX * 3 + 1])
async def test_bytes_go_on_as_they_are(size: int) -> None:
    arena = Arena(4 << 20)
    data = bytes(at * 7 % 251 for at in range(size))
    async with Upstream(owner="other").running() as upstream, relaying(upstream.config(), arena=arena) as relay:
        await answered(relay, work(picture(arena, data)))
    part = upstream.bodies[0]["messages"][0]["content"][0]
    head, _, encoded = part["image_url"]["url"].partition(",")
    assert (head, base64.b64decode(encoded)) == ("data:image/png;base64", data)
    assert "uuid" not in part, "this server does not say that it takes one"
    assert upstream.headers[0]["Content-Length"] == str(len(upstream.raw[0]))


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


async def test_what_only_has_a_name_goes_where_it_is_held_or_nowhere() -> None:
    arena = Arena(1 << 20)
    named = RelayedMedia("foveate-1", "", (), None, 100)
    first, second = Upstream(name="a"), Upstream(name="b")
    async with (
        first.running(),
        second.running(),
        relaying(first.config(), second.config(), arena=arena) as relay,
    ):
        with pytest.raises(MediaNotHeld):
            await answered(relay, work(named))
        holder = (await answered(relay, work(picture(arena, b"png"))))[0].server
        for _ in range(3):
            assert (await answered(relay, work(named)))[0].server == holder
        (first if holder == "a" else second).answers = [failing(400)]
        with pytest.raises(MediaNotHeld):
            await answered(relay, work(named))


async def test_the_url_mode_passes_the_clients_url() -> None:
    async with Upstream().running() as upstream, relaying(upstream.config(mode="url")) as relay:
        assert not relay.needs_bytes("m")
        await answered(relay, work(RelayedMedia("n", "", (), "https://cdn.example/a.png?q", 1)))
    assert upstream.bodies[0]["messages"][0]["content"][0]["image_url"] == {"url": "https://cdn.example/a.png?q"}


async def test_a_4xx_is_the_clients_with_the_upstreams_own_words() -> None:
    first, second = Upstream(failing(400, "top_p must be in (0, 1]"), name="a"), Upstream(name="b")
    async with first.running(), second.running(), relaying(first.config(weight=10), second.config()) as relay:
        with pytest.raises(UpstreamRefused) as raised:
            await answered(relay, work())
    assert raised.value.public == "top_p must be in (0, 1]"
    assert b'"code":7' in raised.value.answer.replace(b" ", b"")
    assert not second.bodies, "another server would say the same"
    assert relay.servers[0].health.failures == 0


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


async def test_leaving_closes_the_connection_at_once_and_frees_the_place() -> None:
    async with Upstream(endless).running() as upstream, relaying(upstream.config(concurrency_max=1)) as relay:
        async with aclosing(relay.forward(work())) as events:
            await anext(events)
            assert relay.servers[0].in_flight == 1
        assert relay.servers[0].in_flight == relay.servers[0].outstanding == 0
        async with asyncio.timeout(2):
            await upstream.left.wait()


async def test_leaving_while_the_upstream_is_silent_frees_the_place() -> None:
    upstream = Upstream()
    upstream.gate.clear()
    async with upstream.running(), relaying(upstream.config()) as relay:
        task = asyncio.create_task(answered(relay, work()))
        async with asyncio.timeout(5):
            while not upstream.bodies:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert (relay.servers[0].in_flight, relay.servers[0].ended["cancelled"]) == (0, 1)


async def test_more_than_the_places_wait_in_order_and_no_more_than_may() -> None:
    upstream = Upstream()
    upstream.gate.clear()
    async with upstream.running(), relaying(upstream.config(concurrency_max=1), waiting_max=2) as relay:
        done: list[int] = []

        async def ask(number: int) -> None:
            await answered(relay, work())
            done.append(number)

        tasks = []
        for number in range(3):
            tasks.append(asyncio.create_task(ask(number)))
            await asyncio.sleep(0.05)
        assert (relay.waiting, len(upstream.bodies)) == (2, 1)
        with pytest.raises(QueueFull):
            await answered(relay, work())
        upstream.gate.set()
        await asyncio.gather(*tasks)
        assert done == [0, 1, 2]


async def test_the_same_picture_goes_to_the_same_server() -> None:
    arena = Arena(1 << 20)
    first, second = Upstream(name="a"), Upstream(name="b")
    async with (
        first.running(),
        second.running(),
        relaying(first.config(), second.config(), arena=arena) as relay,
    ):
        chosen: dict[str, set[str]] = {}
        for turn in range(12):
            name = f"foveate-{turn % 4}"
            events = await answered(relay, work(picture(arena, b"png", name), text=f"question {turn}"))
            chosen.setdefault(name, set()).add(events[0].server)
    assert all(len(servers) == 1 for servers in chosen.values())
    assert {server for servers in chosen.values() for server in servers} == {"a", "b"}


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


async def test_answers_that_arrive_in_pieces_are_read_whole() -> None:
    async def refusing(upstream: Upstream, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await in_pieces(request, 400, [b'{"error":{"message":', b'"top_p is odd"}}'])

    upstream = Upstream(refusing)
    upstream.listing = [b'{"data":[{"id":', b'"m","owned_by":"vllm"}]}']
    async with upstream.running(), relaying(upstream.config()) as relay:
        with pytest.raises(UpstreamRefused) as raised:
            await answered(relay, work())
    assert raised.value.public == "top_p is odd"


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


async def test_a_draining_server_gets_nothing_new() -> None:
    first, second = Upstream(name="a"), Upstream(name="b")
    async with first.running(), second.running(), relaying(first.config(weight=10), second.config()) as relay:
        relay.servers[0].draining = True
        assert (await answered(relay, work()))[0].server == "b"
        relay.servers[1].draining = True
        assert not relay.ready
        with pytest.raises(UpstreamUnavailable):
            await answered(relay, work())


async def test_an_answer_that_is_no_stream_is_passed_whole() -> None:
    async with Upstream().running() as upstream, relaying(upstream.config()) as relay:
        asked = work(stream=False)
        (event,) = await answered(relay, asked)
    assert event.last
    assert event.data.startswith(b'{"id":"' + asked.request_id.encode())
    assert b'"content": "Hello"' in event.data, "values keep their bytes"


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
