"""Requests made from the served OpenAPI document: none fails on the server's side, and what comes back is as documented.

The same requests every time: the generator is seeded by the test itself. What it would never find by itself is put into some of them: the
served model, a real picture, few tokens to generate.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.blackbox.pictures import one, url_of
from tests.blackbox.server import Server

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES: Final = {True: 40, False: 8}
"""Requests to a route with a body, and without."""
PICTURE: Final = url_of(one("red", "circle"))
ROUTES: Final = {
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/estimate": "POST",
    "/v1/budget": "GET",
    "/v1/models": "GET",
    "/v1/models/{model}": "GET",
    "/health": "GET",
    "/ready": "GET",
    "/metrics": "GET",
    "/version": "GET",
    "/admin/rules": "GET",
    "/admin/reload": "POST",
    "/admin/caches": "GET",
    "/admin/caches/{cache}": "DELETE",
    "/admin/caches/{cache}/keys": "GET",
    "/admin/caches/{cache}/curve": "GET",
    "/admin/caches/{cache}/keys/{name}": "DELETE",
    "/admin/caches/media": "DELETE",
    "/admin/caches/media/keys": "GET",
    "/admin/caches/media/keys/{name}": "DELETE",
    "/admin/canary": "POST",
    "/admin/canary/share": "POST",
    "/admin/canary/promote": "POST",
    "/admin/canary/rollback": "POST",
    "/admin/upstreams": "GET",
    "/admin/upstreams/{name}/drain": "POST",
    "/admin/upstreams/{name}/resume": "POST",
    "/admin/aliases": "GET",
    "/admin/aliases/{tenant}/{uuid}": "DELETE",
    "/admin/cost": "GET",
    "/admin/cost/requests/{id}": "GET",
    "/admin/slo": "GET",
    "/admin/topology": "PUT",
    "/admin/engines": "GET",
    "/admin/engines/{name}/drain": "POST",
    "/admin/engines/{name}/resume": "POST",
}
BODIES: Final = ("/v1/chat/completions", "/v1/completions", "/v1/estimate")
REFUSED: Final = ("/v1/models/{model}", *(path for path in ROUTES if path.startswith("/admin/")))
"""Routes that this server has nothing for: no model of a made-up name, no admins."""


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    return dict(httpx.get(f"{server.base_url}/openapi.json").json())


def test_every_route_is_asked(document: dict[str, Any]) -> None:
    open_ = {path: method.upper() for path, methods in document["paths"].items() for method in methods}
    assert open_ == ROUTES


RUNS: Final = [(path, True) for path in ROUTES] + [(path, False) for path in BODIES]


@pytest.mark.parametrize(("path", "valid"), RUNS)
def test_no_server_error(server: Server, document: dict[str, Any], path: str, valid: bool) -> None:
    """``valid``: requests that the document allows; else such as it does not."""
    schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig())
    operation = schema[path][ROUTES[path]]
    mode = GenerationMode.POSITIVE if valid else GenerationMode.NEGATIVE
    statuses: Counter[int] = Counter()

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=EXAMPLES[path in BODIES],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):
            _keep_small(case.body)
            if _often(case.body):
                _make_likely(case.body)
        if _often(case.headers):
            case.headers.clear()
        response = case.call(base_url=server.base_url, timeout=30)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    ask()
    if path not in REFUSED:
        assert statuses[200 if valid else 400], statuses


def _keep_small(body: dict[str, Any]) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int):
            body[name] = 2
    body.setdefault("max_tokens", 2)


def _make_likely(body: dict[str, Any]) -> None:
    """Mend what no schema can tell: the served model, real pictures, fields that need each other."""
    body.pop("model", None)
    if body.get("top_logprobs") is not None:
        body["logprobs"] = True
    if body.get("stream_options") is not None:
        body["stream"] = True
    for message in body.get("messages") or []:
        if isinstance(message, dict) and message.get("content", None) is None:
            message["content"] = "x"
    for holder, key in _addresses(body):
        holder[key] = PICTURE


def _often(value: Any) -> bool:
    """Tell the same of a value every time, and true of three in four."""
    return zlib.crc32(repr(value).encode(errors="replace")) % 4 > 0


def _addresses(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(value, list):
        for item in value:
            yield from _addresses(item)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str) and key in ("url", "image_url", "video_url"):
                yield value, key
            else:
                yield from _addresses(inner)
