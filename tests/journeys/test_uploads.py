"""Large bodies are charged to their tenant from the time they arrive until their request gives everything back."""

import base64
import json

import msgspec
import pytest
from tests.journeys.asking import RED, picture, request, settled
from tests.journeys.house import house, nothing_held, with_tools
from tests.journeys.origin import content

from foveate.core.budget import Budget, Caller
from foveate.core.errors import HouseFull, MediaTotalTooLarge
from foveate.core.limits import SKELETON_BYTES_MAX
from foveate.core.media import InlineRef
from foveate.engines.port import FinishEvent
from foveate.journey.service import Journey

pytestmark = pytest.mark.asyncio(loop_scope="session")
PADDING = 1_600_000


def caller(tenant: str, **limits: int) -> Caller:
    return Caller(tenant, Budget(**limits))


async def test_a_body_counts_for_its_tenant_from_its_arrival_to_the_first_token(service: Journey) -> None:
    journey = with_tools(service, **house())
    accounts = journey.tools.in_flight
    data = content(picture(RED)) + bytes(PADDING)
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    body = json.dumps({"messages": [{"content": [{"type": "image_url", "image_url": {"url": url}}]}]}).encode()
    limited = caller("a", max_tenant_bytes=len(data) + 1000)
    async with journey.body(len(body), limited) as buffer:
        buffer.write(body)
        assert accounts.used("bytes") == (len(body) - SKELETON_BYTES_MAX) * 3 // 4
        with pytest.raises(HouseFull) as full:
            async with journey.body(len(body), limited) as second:
                second.write(body)
        assert full.value.limit_name == "max_tenant_bytes"
        with pytest.raises(MediaTotalTooLarge):
            async with journey.body(len(body), caller("b", max_tenant_bytes=1024)) as third:
                third.write(body)
        async with journey.body(len(body), caller("c")) as other:
            other.write(body)
        assert accounts.tenants == 1
        async with journey.unpack(buffer) as unpacked:
            assert accounts.used("bytes") == len(data)
            assert unpacked.hold is not None
            held = unpacked.hold.retain()
            assert held.slot.size == len(data), "what base64 had is given back"
            held.release()
            asked = msgspec.structs.replace(request(InlineRef(0)), caller=limited)
            async with journey.answer(asked, unpacked) as answer:
                await answer.begin()
                assert accounts.used("bytes") == 0
                events = [event async for event in answer.events()]
            assert isinstance(events[-1], FinishEvent)
    assert nothing_held(journey)
    await settled(service)


async def test_a_text_is_never_charged(service: Journey) -> None:
    journey = with_tools(service, **house(bytes_max=1024))
    async with journey.body(SKELETON_BYTES_MAX, caller("a", max_tenant_bytes=1024)) as buffer:
        buffer.write(b" " * SKELETON_BYTES_MAX)
        assert journey.tools.in_flight.used("bytes") == 0
    assert nothing_held(journey)
