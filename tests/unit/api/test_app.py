"""The routes that do not generate, the OpenAPI document, and the router's own refusals."""

from __future__ import annotations

import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion
from tests.unit.api.asking import client
from tests.unit.api.fake import FakeService, chat

import foveate
from foveate.api.app import create_app
from foveate.core.budget import FIELDS
from foveate.journey.port import Readiness


async def test_plain_routes() -> None:
    async with client(FakeService()) as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        assert (await http.get("/version")).json() == {"version": foveate.__version__}
        metrics = await http.get("/metrics")
        assert metrics.text == "a 1\n"
        assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_readiness() -> None:
    service = FakeService()
    async with client(service) as http:
        ready = await http.get("/ready")
        assert (ready.status_code, ready.json()) == (200, {"ready": True, "reason": ""})
        service.ready = Readiness(False, "engine: loading")
        waiting = await http.get("/ready")
        assert (waiting.status_code, waiting.json()) == (503, {"ready": False, "reason": "engine: loading"})
        assert waiting.headers["retry-after"] == "1"
        assert (await http.get("/health")).status_code == 200


async def test_models() -> None:
    async with client(FakeService()) as http:
        listed = (await http.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == ["m", "org/other"]
        one = (await http.get("/v1/models/org/other")).json()
        assert one == listed["data"][1]
        assert one["object"] == "model"
        assert one["max_model_len"] == 4096
        missing = await http.get("/v1/models/gpt")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
    ],
)
async def test_router_refusals(method: str, path: str, status: int, code: str) -> None:
    async with client(FakeService()) as http:
        reply = await http.request(method, path)
    assert reply.status_code == status
    assert set(reply.json()["error"]) == {"message", "type", "param", "code", "status", "retryable"}
    assert reply.json()["error"]["status"] == status
    assert reply.json()["error"]["code"] == code
    assert ("allow" in reply.headers) == (status == 405)


async def test_document() -> None:
    async with client(FakeService()) as http:
        document = (await http.get("/openapi.json")).json()
        assert (await http.get("/docs")).status_code == 200
    assert set(document["paths"]) == {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model}",
        "/health", "/ready", "/metrics", "/version", "/admin/reload", "/admin/rules",
        "/v1/estimate", "/v1/budget", "/admin/caches", "/admin/caches/{cache}", "/admin/caches/{cache}/curve",
        "/admin/caches/{cache}/keys", "/admin/caches/{cache}/keys/{name}", "/admin/aliases",
        "/admin/caches/media", "/admin/caches/media/keys", "/admin/caches/media/keys/{name}",
        "/admin/aliases/{tenant}/{uuid}", "/admin/cost", "/admin/cost/requests/{id}", "/admin/slo",
        "/admin/upstreams", "/admin/upstreams/{name}/drain", "/admin/upstreams/{name}/resume",
        "/admin/canary", "/admin/canary/share", "/admin/canary/promote", "/admin/canary/rollback",
        "/admin/topology", "/admin/engines", "/admin/engines/{name}/drain", "/admin/engines/{name}/resume",
    }  # fmt: skip
    schemas = document["components"]["schemas"]
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatRequest"}
    assert {"messages", "temperature", "top_logprobs", "stream_options"} <= set(schemas["ChatRequest"]["properties"])
    assert schemas["ChatRequest"]["additionalProperties"] is False
    answers = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
    assert {"400", "401", "403", "404", "409", "413", "415", "422", "429", "500", "502", "503", "504"} <= set(answers)
    assert "too_many_images" in answers["400"]["description"]
    assert "Retry-After" in answers["429"]["headers"]
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    limits = schemas["BudgetReply"]["properties"]["limits"]
    assert limits["required"] == [field.name for field in FIELDS]
    assert all(field.help in limits["properties"][field.name]["description"] for field in FIELDS)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert path.startswith(("/v1/", "/admin/")) == ({} in operation.get("security", [])), path
    assert {"message", "type", "param", "code", "status", "limit_name"} <= set(schemas["ErrorBody"]["properties"])
    assert "`guided_json`" in document["info"]["description"]
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for item in value.values() for found in _references(item)]
    if isinstance(value, list):
        return [found for item in value for found in _references(item)]
    return []


async def test_an_unexpected_failure_says_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService(before=[RuntimeError("secret at 0x7f00deadbeef in /srv/app")])
    async with client(service) as http:
        reply = await http.post("/v1/chat/completions", json=chat())
    assert reply.status_code == 500
    assert reply.json()["error"] == {
        "message": "The server failed to answer this request.", "type": "server_error",
        "param": None, "code": "internal_error", "status": 500, "retryable": False,
    }  # fmt: skip
    assert reply.headers["x-should-retry"] == "false"
    traces = [record for record in caplog.records if record.exc_info]
    assert len(traces) == 1
    assert traces[0].exc_info is not None
    assert isinstance(traces[0].exc_info[1], RuntimeError)


async def test_answers_have_the_official_shape() -> None:
    async with client(FakeService()) as http:
        reply = await http.post("/v1/chat/completions", json=chat())
    answer = ChatCompletion.model_validate(reply.json(), strict=True)
    assert answer.choices[0].message.content == "Hello"
    assert isinstance(answer.usage, CompletionUsage)


def test_the_application_knows_its_open_exchanges() -> None:
    assert create_app(FakeService()).state.gate.open == 0
