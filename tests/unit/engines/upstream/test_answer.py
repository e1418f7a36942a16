"""What is made of one server's answer, and what it was sent for it: with real HTTP servers that answer as a test tells them."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from aiohttp import web
from tests.unit.engines.upstream.answering import (
    Upstream,
    answered,
    failing,
    in_pieces,
    payloads,
    picture,
    relaying,
    text,
    work,
)

from foveate.core.errors import UpstreamRefused
from foveate.engines.port import RelayedMedia
from foveate.engines.upstream.body import SLICE_BYTES, WHOLE_BYTES_MAX
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


async def test_answers_that_arrive_in_pieces_are_read_whole() -> None:
    async def refusing(upstream: Upstream, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await in_pieces(request, 400, [b'{"error":{"message":', b'"top_p is odd"}}'])

    upstream = Upstream(refusing)
    upstream.listing = [b'{"data":[{"id":', b'"m","owned_by":"vllm"}]}']
    async with upstream.running(), relaying(upstream.config()) as relay:
        with pytest.raises(UpstreamRefused) as raised:
            await answered(relay, work())
    assert raised.value.public == "top_p is odd"


async def test_an_answer_that_is_no_stream_is_passed_whole() -> None:
    async with Upstream().running() as upstream, relaying(upstream.config()) as relay:
        asked = work(stream=False)
        (event,) = await answered(relay, asked)
    assert event.last
    assert event.data.startswith(b'{"id":"' + asked.request_id.encode())
    assert b'"content": "Hello"' in event.data, "values keep their bytes"
