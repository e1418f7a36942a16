"""Which server is asked, and who waits for a place at one: with real HTTP servers that answer as a test tells them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.unit.engines.upstream.answering import Upstream, answered, endless, failing, picture, relaying, work

from foveate.core.errors import MediaNotHeld, QueueFull, UpstreamUnavailable
from foveate.engines.port import RelayedMedia
from foveate.runtime.arena import Arena

pytestmark = pytest.mark.asyncio


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


async def test_a_draining_server_gets_nothing_new() -> None:
    first, second = Upstream(name="a"), Upstream(name="b")
    async with first.running(), second.running(), relaying(first.config(weight=10), second.config()) as relay:
        relay.servers[0].draining = True
        assert (await answered(relay, work()))[0].server == "b"
        relay.servers[1].draining = True
        assert not relay.ready
        with pytest.raises(UpstreamUnavailable):
            await answered(relay, work())
