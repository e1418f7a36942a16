"""Large bodies: what a request holds of the arena while its inline pictures wait."""

import json

import pytest
from tests.journeys.asking import BLUE, RED, cached_bytes, data_of, picture, request, settled

from foveate.core.budget import Caller
from foveate.core.media import Blob, InlineRef
from foveate.journey.service import Journey
from foveate.runtime.arena import aligned

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("pictures", [0, 1, 3])
async def test_an_unpacked_body_holds_its_pictures_and_nothing_else(service: Journey, pictures: int) -> None:
    arena = service.tools.arena
    sent = [picture(RED) for _ in range(pictures)]
    parts = [{"type": "image_url", "image_url": {"url": one.url}} for one in sent]
    parts.append({"type": "text", "text": "x" * 500_000})
    body = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    before = arena.used_bytes

    async with service.body(len(body), Caller()) as buffer:
        buffer.write(body)
        async with service.unpack(buffer) as unpacked:
            held = arena.used_bytes - before
            assert held == aligned(sum(len(data_of(one)) for one in sent) or 1)
            assert [bytes(arena.view(blob.slot)) for blob in unpacked.blobs if isinstance(blob, Blob)] == [
                data_of(one) for one in sent
            ]
    assert arena.used_bytes == before


async def test_an_unpacked_body_is_given_back_at_the_first_token(service: Journey) -> None:
    """What streams for minutes must not keep megabytes that nobody counts any more."""
    tools = service.tools
    sent = picture(BLUE)
    text = {"type": "text", "text": "x" * 500_000}
    parts = [{"type": "image_url", "image_url": {"url": sent.url}}, text]
    body = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    await settled(service)

    async with service.body(len(body), Caller()) as buffer:
        buffer.write(body)
        async with service.unpack(buffer) as unpacked:
            assert tools.in_flight.used("bytes") == len(data_of(sent))
            assert tools.arena.used_bytes > cached_bytes(service)
            async with service.answer(request(InlineRef(0), tokens=24), unpacked) as answer:
                await answer.begin()
                assert tools.in_flight.used("bytes") == 0
                assert tools.arena.used_bytes == cached_bytes(service)
                assert [event async for event in answer.events()]
    await settled(service)
