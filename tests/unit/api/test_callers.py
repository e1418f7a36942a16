"""Who asks: which headers say so, when it is asked, and that a key goes nowhere."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from tests.unit.api.asking import client
from tests.unit.api.fake import FakeService, chat, serving
from tests.unit.api.sockets import connected

from foveate.core.budget import Budget, Caller

KEY = "fv-0123456789-secret"
ADA = Caller("ada", Budget(tier="trusted", max_images=9))
ROOT = Caller("root", Budget(), admin=True)


def closed() -> FakeService:
    """A service that wants a key."""
    return FakeService(callers={KEY: ADA, "root-key": ROOT})


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer   {KEY} "},
        {"X-API-Key": KEY},
        {"Authorization": "Basic abc", "x-api-key": KEY},
        {"Authorization": f"Bearer {KEY}", "x-api-key": f" {KEY} "},
    ],
)
async def test_keys_that_are_known(headers: dict[str, str]) -> None:
    service = closed()
    async with client(service) as http:
        for path in ("/v1/models", "/v1/models/m"):
            assert (await http.get(path, headers=headers)).status_code == 200
        for path, body in (("/v1/chat/completions", chat()), ("/v1/completions", {"prompt": "x"})):
            assert (await http.post(path, json=body, headers=headers)).status_code == 200
    assert [request.caller for request in service.requests] == [ADA, ADA]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"x-api-key": ""},
        {"x-api-key": "x" * 5000},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/m"),
        ("GET", "/v1/models/nothing"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
    ],
)
async def test_keys_that_are_not(headers: dict[str, str], method: str, path: str) -> None:
    service = closed()
    async with client(service) as http:
        reply = await http.request(method, path, headers=headers, content=b"{" if method == "POST" else b"")
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    error = reply.json()["error"]
    assert (error["code"], error["type"], error["status"]) == ("invalid_api_key", "authentication_error", 401)
    assert "Bearer" in error["message"]
    assert service.requests == []


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ([("Authorization", f"Bearer {KEY}"), ("x-api-key", "root-key")], "x-api-key"),
        ([("Authorization", "Bearer wrong"), ("x-api-key", KEY)], "x-api-key"),
        ([("Authorization", f"Bearer {KEY}"), ("x-api-key", "wrong")], "x-api-key"),
        ([("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer root-key")], "Authorization"),
        ([("x-api-key", KEY), ("x-api-key", "root-key")], "x-api-key"),
        ([("x-api-key", "root-key"), ("X-Foveate-Tier", "batch"), ("X-Foveate-Tier", "night")], "X-Foveate-Tier"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/estimate"), ("POST", "/admin/reload")],
)
async def test_two_that_differ_are_refused(headers: list[tuple[str, str]], param: str, method: str, path: str) -> None:
    service = closed()
    async with client(service) as http:
        reply = await http.request(method, path, headers=headers, content=b"{" if method == "POST" else b"")
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "invalid_parameter", param)
    assert param in error["message"]
    assert "root-key" not in reply.text
    assert KEY not in reply.text
    assert service.requests == []


async def test_the_same_twice_is_said_once() -> None:
    service = closed()
    twice = [("x-api-key", "root-key"), ("Authorization", "Bearer root-key"), ("x-api-key", "root-key")]
    tiers = [("X-Foveate-Tier", "batch"), ("X-Foveate-Tier", " batch"), ("X-Foveate-Tier", "")]
    async with client(service) as http:
        reply = await http.post("/v1/chat/completions", json=chat(), headers=[*twice, *tiers])
    assert reply.status_code == 200
    assert [request.caller.budget.tier for request in service.requests] == ["batch"]


async def test_what_stays_open() -> None:
    async with client(closed()) as http:
        for path in ("/health", "/ready", "/metrics", "/version", "/docs", "/openapi.json"):
            assert (await http.get(path)).status_code == 200, path
        assert (await http.get("/v1/nothing")).status_code == 404


async def test_a_refused_key_costs_no_upload() -> None:
    service = closed()
    async with serving(service) as server, connected(server.port) as raw:
        await raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n")
        status, headers, _ = await raw.reply()
        assert (status, headers["connection"]) == (401, "close")
        # What comes all the same is dropped, and the connection ends without a reset.
        await raw.send(b" " * 900_000)
        assert await raw.rest() == b""
    assert service.buffers == []
    assert service.refusals == ["invalid_api_key"]


async def test_a_client_that_asks_first_is_not_told_to_go_on() -> None:
    async with serving(closed()) as server, connected(server.port) as raw:
        await raw.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 900000\r\n\r\n"
        )
        assert (await raw.reply())[0] == 401
        assert await raw.rest() == b""


async def test_a_known_key_uploads_as_ever() -> None:
    service = closed()
    async with serving(service) as server, connected(server.port) as raw:
        for _ in range(2):
            await raw.post(chat(user="u" * 100_000), f"Authorization: Bearer {KEY}")
            assert (await raw.reply())[0] == 200
    assert len(service.buffers) == 2
    assert service.requests[1].caller == ADA


async def test_another_tier() -> None:
    service = closed()
    async with client(service) as http:
        mine = {"Authorization": f"Bearer {KEY}", "X-Foveate-Tier": "batch"}
        refused = await http.post("/v1/chat/completions", json=chat(), headers=mine)
        assert refused.status_code == 403
        assert (refused.json()["error"]["code"], refused.json()["error"]["type"]) == (
            "not_permitted",
            "permission_error",
        )
        assert refused.json()["error"]["param"] == "X-Foveate-Tier"
        long = await http.post("/v1/chat/completions", json=chat(), headers={**mine, "X-Foveate-Tier": "b" * 300})
        assert long.status_code == 403
        theirs = {"Authorization": "Bearer root-key", "X-Foveate-Tier": " batch "}
        assert (await http.post("/v1/chat/completions", json=chat(), headers=theirs)).status_code == 200
    assert [request.caller.budget.tier for request in service.requests] == ["batch"]


async def test_keys_are_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    service = closed()
    service.before = [RuntimeError("broken")]
    async with serving(service) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=url) as http:
            told = [
                (await http.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})).text
                for key in (KEY, KEY + "-wrong")
                for body in (chat(), chat(temperature=9))
            ]
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    traces = [str(record.exc_info) for record in caplog.records]
    assert len(told) == 4
    assert any("broken" in line for line in traces)
    assert not [line for line in (*told, *logged, *traces, *map(repr, service.requests)) if KEY in line]


async def test_the_official_client_sees_its_own_exceptions() -> None:
    service = closed()
    async with serving(service) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        for key, tier, expected in (
            ("wrong", None, openai.AuthenticationError),
            (KEY, "other", openai.PermissionDeniedError),
        ):
            headers = {"X-Foveate-Tier": tier} if tier else {}
            async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=2, default_headers=headers) as ai:
                with pytest.raises(expected):
                    await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 500_000}])
                with pytest.raises(expected):
                    await asyncio.wait_for(ai.models.retrieve("m"), 5)
    assert len(service.refusals) == 2


async def test_a_body_that_is_refused_is_recorded_for_who_sent_it() -> None:
    service = closed()
    async with client(service) as http:
        await http.post("/v1/chat/completions", content=b"{", headers={"x-api-key": KEY})
        await http.post("/v1/chat/completions", content=b"{")
    assert service.refused_tenants == ["ada", None]
