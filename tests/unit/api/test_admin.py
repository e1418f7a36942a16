"""The admin API is for admins, and says what to do to everybody else."""

import httpx
import pytest
from tests.unit.api.fake import FakeService, serving
from tests.unit.api.fake_admin import HOT, MEDIUM

from foveate.core.budget import Budget, Caller
from foveate.core.errors import SettingsRefused
from foveate.observe.ledger import RequestLedger

ADMIN, OTHER = {"authorization": "Bearer admin"}, {"x-api-key": "other"}


def with_keys(**fields: object) -> FakeService:
    return FakeService(
        callers={"admin": Caller("ops", Budget(), admin=True), "other": Caller("acme", Budget())},
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/admin/reload"),
        ("GET", "/admin/rules"),
        ("GET", "/admin/caches"),
        ("GET", "/admin/caches/encoder/keys"),
        ("GET", "/admin/caches/processor/curve"),
        ("DELETE", f"/admin/caches/encoder/keys/{HOT.name}"),
        ("DELETE", "/admin/caches/processor?version=v"),
        ("GET", "/admin/caches/media/keys"),
        ("DELETE", f"/admin/caches/media/keys/{MEDIUM.name}"),
        ("DELETE", "/admin/caches/media?host=img.example"),
        ("GET", "/admin/aliases?tenant=acme"),
        ("DELETE", "/admin/aliases/acme/mine/1"),
        ("GET", "/admin/cost"),
        ("GET", "/admin/slo"),
        ("GET", "/admin/topology"),
        ("GET", "/admin/engines"),
        ("POST", "/admin/engines/0/drain"),
        ("POST", "/admin/engines/0/resume"),
        ("GET", "/admin/upstreams"),
        ("POST", "/admin/upstreams/gpu1:8000/drain"),
        ("POST", "/admin/upstreams/gpu1:8000/resume"),
    ],
)
async def test_only_admins_may(method: str, path: str) -> None:
    async with serving(with_keys()) as server, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{server.port}{path}"
        assert (await client.request(method, url)).status_code == 401
        refused = await client.request(method, url, headers=OTHER)
        assert refused.status_code == 403
        assert "admin: true" in refused.json()["error"]["message"]
        assert (await client.request(method, url, headers=ADMIN)).status_code == 200
    async with serving(FakeService()) as server, httpx.AsyncClient() as client:
        refused = await client.request(method, f"http://127.0.0.1:{server.port}{path}", headers=ADMIN)
        assert refused.status_code == 403
        assert "auth.keys_file" in refused.json()["error"]["message"]
        assert refused.json()["error"]["code"] == "not_permitted"


async def test_no_admin_route_is_left_open() -> None:
    async with serving(with_keys()) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        routes = [(method, path) for path, methods in paths.items() if path.startswith("/admin") for method in methods]
        assert len(routes) > 20
        for method, path in routes:
            url = path.replace("{", "").replace("}", "")
            assert (await client.request(method, url)).status_code == 401, (method, path)
            assert (await client.request(method, url, headers=OTHER)).status_code == 403, (method, path)


async def test_what_comes_back() -> None:
    async with serving(with_keys()) as server, httpx.AsyncClient(headers=ADMIN) as client:
        base = f"http://127.0.0.1:{server.port}"
        assert (await client.post(f"{base}/admin/reload")).json() == {
            "tiers": ["default"],
            "keys": 2,
            "changed": ["auth.keys_file"],
            "restart_needed": ["server.port"],
            "warnings": [],
        }
        rules = (await client.get(f"{base}/admin/rules")).json()
        assert rules["tiers"]["default"]["max_images"] == Budget().max_images
        assert rules["keys"] == {"acme": 2}
        document = (await client.get(f"{base}/openapi.json")).json()
        assert {"/admin/reload", "/admin/rules"} <= set(document["paths"])
        assert {"Reloaded", "RulesInForce", "Budget"} <= set(document["components"]["schemas"])


async def test_settings_that_cannot_be_used_are_told() -> None:
    service = with_keys(reload_refused=SettingsRefused("There is no setting 'x'."))
    async with serving(service) as server, httpx.AsyncClient(headers=ADMIN) as client:
        reply = await client.post(f"http://127.0.0.1:{server.port}/admin/reload")
        assert reply.status_code == 422
        assert reply.json()["error"]["code"] == "settings_refused"
        assert reply.json()["error"]["message"] == "There is no setting 'x'."


async def test_names_are_listed_and_freed() -> None:
    service = with_keys()
    async with serving(service) as server, httpx.AsyncClient(headers=ADMIN) as client:
        base = f"http://127.0.0.1:{server.port}/admin/aliases"
        listed = (await client.get(base, params={"tenant": "acme", "limit": 7})).json()
        assert listed == {
            "tenant": "acme",
            "bound": 1,
            "aliases": [{"uuid": "mine/1", "digest": "d" * 64, "format": "png", "width": 30, "height": 20}],
        }
        for written in ("mine/1", "mine%2F1"):
            assert (await client.delete(f"{base}/acme/{written}")).json() == {"tenant": "acme", "uuid": "mine/1"}
        unknown = await client.delete(f"{base}/acme/other")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "alias_not_found")
        for query in ({}, {"tenant": ""}, {"tenant": "acme", "limit": "0"}, {"tenant": "acme", "limit": "x"}):
            assert (await client.get(base, params=query)).status_code == 400
    assert service.cached.asked == [("acme", 7), ("acme", "mine/1"), ("acme", "mine/1"), ("acme", "other")]


async def test_costs_by_what_is_asked_and_of_a_request() -> None:
    service = with_keys()
    ledger = RequestLedger(request_id="chatcmpl-1", model="m", received_at=0.0, images=0, tenant="acme")
    service.observer.opened(ledger)
    service.observer.ended(ledger.end("answered", error_code=None, at=1.0))
    async with serving(service) as server, httpx.AsyncClient(headers=ADMIN) as client:
        url = f"http://127.0.0.1:{server.port}/admin/cost"
        (row,) = (await client.get(f"{url}?by=modality,tenant")).json()["rows"]
        assert (row["tenant"], row["modality"], row["model"], row["requests"]) == ("acme", "text", None, 1)
        assert (await client.get(f"{url}?by=colour")).json()["error"]["code"] == "invalid_parameter"
        assert (await client.get(f"{url}/requests/chatcmpl-1")).json()["total_ms"] == 1000
        unknown = await client.get(f"{url}/requests/chatcmpl-2")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "request_not_found")
