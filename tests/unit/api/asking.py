"""Asks the application without a socket, and the converters without an application."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from tests.unit.api.fake import FakeService

from foveate.api import convert
from foveate.api.app import create_app, parser
from foveate.api.schema import ChatRequest, CompletionRequest
from foveate.core.errors import FoveateError
from foveate.core.request import Request

ARRIVAL = convert.Arrival("chatcmpl-1", 5.0, ("m", "org/other"))
CASES = Path(__file__).parents[2] / "data" / "cases"


def client(service: FakeService) -> httpx.AsyncClient:
    """An in-process client; what the application raises is raised in the test."""
    transport = httpx.ASGITransport(create_app(service))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def parsed(body: dict[str, Any] | bytes, *, arrival: convert.Arrival = ARRIVAL) -> Request:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parser(ChatRequest, convert.chat)(raw, arrival)


def parsed_completion(body: dict[str, Any]) -> Request:
    return parser(CompletionRequest, convert.completion)(json.dumps(body).encode(), ARRIVAL)


def refusal_of(body: dict[str, Any] | bytes) -> FoveateError:
    """Return the refusal of a chat body. Fails if it is accepted."""
    try:
        request = parsed(body)
    except FoveateError as error:
        return error
    raise AssertionError(f"accepted: {request}")


def case_lines(name: str) -> list[bytes]:
    return (CASES / name).read_bytes().splitlines()
