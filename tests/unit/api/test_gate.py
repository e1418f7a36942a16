"""Pictures and slow bodies fill their own rooms, never the one of texts; no tenant fills a room alone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack

import pytest
from tests.unit.api.fake import FakeService, chat, serving, with_parts
from tests.unit.api.sockets import Raw, connected

from foveate.api.gate import LIMIT, Gate, Place
from foveate.core.budget import ANYONE, Caller
from foveate.core.errors import FoveateError, QueueFull

PICTURE = with_parts({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}})
TRICKLED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"


class Exchange:
    def __init__(self) -> None:
        self.ended_by: FoveateError | None = None

    def abort(self, error: FoveateError) -> None:
        self.ended_by = error


def enter(scope: ExitStack, gate: Gate, tenant: str = ANYONE) -> tuple[Place, Exchange]:
    exchange = Exchange()
    return scope.enter_context(gate.enter(exchange, tenant)), exchange


def test_a_room_full_of_pictures_refuses_pictures_only() -> None:
    gate = Gate(open_max=2)
    with ExitStack() as scope:
        for _ in range(2):
            enter(scope, gate)[0].known(media=True)
        with pytest.raises(QueueFull) as caught:
            enter(scope, gate)[0].known(media=True)
        assert (caught.value.limit_name, caught.value.limit, caught.value.actual) == (LIMIT, 2, 3)
        for _ in range(2):
            enter(scope, gate)[0].known(media=False)
        with pytest.raises(QueueFull):
            enter(scope, gate)[0].known(media=False)
    assert gate.open == 0
    with ExitStack() as scope:
        enter(scope, gate)[0].known(media=True)


def test_of_small_bodies_that_arrive_the_oldest_makes_room_and_large_ones_are_refused() -> None:
    gate = Gate(open_max=2)
    with ExitStack() as scope:
        (slow, first), (_, second), (third, newest) = (enter(scope, gate) for _ in range(3))
        assert isinstance(first.ended_by, QueueFull)
        assert first.ended_by.limit_name == LIMIT
        assert second.ended_by is None
        assert newest.ended_by is None
        slow.known(media=False)  # it is being ended: nothing counts it any more
        third.large()
        enter(scope, gate)[0].large()
        with pytest.raises(QueueFull):
            enter(scope, gate)[0].large()
    assert gate.open == 0


@pytest.mark.parametrize("media", [True, False])
def test_a_tenant_has_half_of_a_room(media: bool) -> None:
    gate = Gate(open_max=4)
    with ExitStack() as scope:
        for _ in range(2):
            enter(scope, gate, "a")[0].known(media=media)
        with pytest.raises(QueueFull) as caught:
            enter(scope, gate, "a")[0].known(media=media)
        assert caught.value.limit == 2
        for _ in range(2):
            enter(scope, gate, "b")[0].known(media=media)
    with ExitStack() as scope:
        mine = [enter(scope, gate, "a")[1] for _ in range(3)]
        assert [exchange.ended_by is not None for exchange in mine] == [True, False, False]
        other = enter(scope, gate, "b")[1]
        assert other.ended_by is None


def test_who_has_most_bodies_on_their_way_makes_room() -> None:
    gate = Gate(open_max=3)
    with ExitStack() as scope:
        honest = enter(scope, gate, "b")[1]
        flood = [enter(scope, gate)[1] for _ in range(10)]
        assert honest.ended_by is None
        assert [exchange.ended_by is None for exchange in flood] == [False] * 8 + [True] * 2


async def test_a_full_house_of_pictures_and_trickled_bodies_answers_text() -> None:
    never = asyncio.Event()
    service = FakeService(before=[never])
    async with AsyncExitStack() as scope:
        server = await scope.enter_async_context(serving(service, open_max=3))

        async def sends(body: bytes | None = None) -> Raw:
            raw = await scope.enter_async_context(connected(server.port))
            await (raw.post(PICTURE) if body is None else raw.send(body))
            return raw

        for number in range(3):
            await sends()
            while service.open_answers <= number:
                await asyncio.sleep(0)
        status, headers, body = await (await sends()).reply()
        assert (status, body["error"]["limit_name"], headers["retry-after"]) == (429, LIMIT, "1")
        trickling = [await sends(TRICKLED) for _ in range(3)]
        service.before.clear()
        text = await scope.enter_async_context(connected(server.port))
        await text.post(chat())
        assert (await text.reply())[0] == 200
        status, _, body = await trickling[0].reply()
        assert (status, body["error"]["code"]) == (429, "queue_full")
        for one in trickling[1:]:
            one.abort()
        never.set()


async def test_a_tenant_that_floods_refuses_itself_only() -> None:
    never = asyncio.Event()
    service = FakeService(before=[never], callers={"k1": Caller("one"), "k2": Caller("two")})
    async with AsyncExitStack() as scope:
        server = await scope.enter_async_context(serving(service, open_max=4))
        answers = []
        for key in ("k1", "k1", "k1", "k2"):
            raw = await scope.enter_async_context(connected(server.port))
            before = service.open_answers + len(service.refusals)
            await raw.post(chat(), f"Authorization: Bearer {key}")
            while service.open_answers + len(service.refusals) == before:
                await asyncio.sleep(0)
            answers.append(raw)
        assert (await answers[2].reply())[2]["error"]["limit"] == 2
        never.set()
        assert [(await answers[at].reply())[0] for at in (0, 1, 3)] == [200] * 3
