"""The admin routes of the topology: what they pass on and what they refuse."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.unit.api.fake import serving
from tests.unit.api.fake_admin import FakeTopology
from tests.unit.api.test_admin import ADMIN, with_keys

from foveate.core.errors import TopologyRefused


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[httpx.AsyncClient, FakeTopology]]:
    service = with_keys()
    async with (
        serving(service) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", headers=ADMIN) as client,
    ):
        yield client, service.placed


async def test_it_passes_on_what_was_asked_and_tells_of_every_worker() -> None:
    async with asking() as (client, topology):
        shown = (await client.get("/admin/topology")).json()
        assert (shown["kind"], shown["encoders"], shown["workers"][0]["state"]) == ("e-pd", 1, "up")
        await client.put("/admin/topology", json={"kind": "e-pd", "encoders": 3})
        assert (await client.put("/admin/topology", json={"kind": "agg"})).status_code == 200
        await client.put("/admin/topology", json={"kind": "e-p-d", "encoders": 2, "prefill": 1, "decode": 4})
        assert topology.asked == [("e-pd", 3, None, None), ("agg", None, None, None), ("e-p-d", 2, 1, 4)]


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"kind": "e/pd"}', b'{"kind": "e-pd", "encoders": 0}', b'{"kind": "e-pd", "encoders": 65}',
     b'{"kind": "e-p-d", "prefill": 0}', b'{"kind": "e-p-d", "decode": 65}', b'{"kind": "agg", "workers": 1}'],
)  # fmt: skip
async def test_a_body_that_cannot_be_used_is_refused_and_not_passed_on(body: bytes) -> None:
    async with asking() as (client, topology):
        reply = await client.put("/admin/topology", content=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_parameter")
        assert topology.asked == []


async def test_a_topology_that_cannot_be_is_a_conflict() -> None:
    async with asking() as (client, topology):
        topology.refusal = TopologyRefused("No.")
        reply = await client.put("/admin/topology", json={"kind": "agg"})
        assert (reply.status_code, reply.json()["error"]["message"]) == (409, "No.")
