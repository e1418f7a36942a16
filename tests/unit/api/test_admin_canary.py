"""The admin routes of a roll-out: what they pass on, what they refuse, and who may not use them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.unit.api.fake import serving
from tests.unit.api.fake_admin import FakeCanary
from tests.unit.api.test_admin import ADMIN, with_keys

from foveate.core.errors import CanaryNotFound, CanaryRefused, CanaryRunning, FoveateError


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[httpx.AsyncClient, FakeCanary]]:
    service = with_keys()
    async with (
        serving(service) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", headers=ADMIN) as client,
    ):
        yield client, service.tried


async def test_each_route_passes_on_what_was_asked() -> None:
    async with asking() as (client, canary):
        assert (await client.get("/admin/canary")).json()["state"] == "none"
        await client.post("/admin/canary", json={"model": "/models/new", "share": 0.25, "warm": 100})
        await client.post("/admin/canary", json={"model": "org/new"})
        await client.post("/admin/canary", json={"model": "m", "encoder": "package.module:Class"})
        await client.post("/admin/canary/share", json={"share": 1})
        await client.post("/admin/canary/promote")
        reply = await client.post("/admin/canary/rollback")
        assert reply.json()["stable"]["model"] == "m"
        assert canary.asked == [
            ("start", "/models/new", 0.25, 100),
            ("start", "org/new", 0.05, 0),
            ("start", "m", 0.05, 0, "package.module:Class"),
            ("share", 1.0),
            ("promote",),
            ("rollback",),
        ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", b""),
        ("", b"nonsense"),
        ("", b"[]"),
        ("", b"{}"),
        ("", b'{"model": ""}'),
        ("", b'{"model": "m", "share": 1.5}'),
        ("", b'{"model": "m", "share": -0.1}'),
        ("", b'{"model": "m", "share": NaN}'),
        ("", b'{"model": "m", "warm": -1}'),
        ("", b'{"model": "m", "encoder": "no class"}'),
        ("", b'{"model": "m", "shares": 0.5}'),
        ("", b'{"model": "\xff"}'),
        ("/share", b"{}"),
        ("/share", b'{"share": "5%"}'),
    ],
)
async def test_a_body_that_cannot_be_used_is_refused_and_not_passed_on(path: str, body: bytes) -> None:
    async with asking() as (client, canary):
        refused = await client.post(f"/admin/canary{path}", content=body)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["code"] == "invalid_parameter"
        assert canary.asked == []


async def test_a_large_body_is_refused() -> None:
    async with asking() as (client, canary):
        refused = await client.post("/admin/canary", content=b" " * 100_000)
        assert refused.status_code == 413
        assert canary.asked == []


@pytest.mark.parametrize(
    ("error", "status"), [(CanaryRunning(), 409), (CanaryNotFound(), 404), (CanaryRefused("It is too large."), 422)]
)
async def test_refusals_have_their_statuses(error: FoveateError, status: int) -> None:
    async with asking() as (client, canary):
        canary.refusal = error
        refused = await client.post("/admin/canary", json={"model": "m"})
        assert refused.status_code == status
        assert refused.json()["error"]["code"] == error.code
        assert refused.json()["error"]["message"] == error.public


async def test_only_an_admin_may() -> None:
    async with asking() as (client, canary):
        client.headers["x-api-key"] = "nobody"
        client.headers.pop("authorization", None)
        for method, path in (
            ("GET", ""),
            ("POST", ""),
            ("POST", "/share"),
            ("POST", "/promote"),
            ("POST", "/rollback"),
        ):
            refused = await client.request(method, f"/admin/canary{path}", content=b'{"model": "m", "share": 1}')
            assert refused.status_code in (401, 403), path
        assert canary.asked == []
