"""Estimates: the body is a chat's, the answer a price, and only a request that is none fails."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.unit.api.asking import client
from tests.unit.api.fake import FREE, FakeService, chat, serving, with_parts
from tests.unit.api.sockets import connected
from tests.unit.api.test_body import large, unpack

from foveate.core.budget import Adjustment, Budget, Caller
from foveate.core.errors import Draining, HouseFull, ImageTooLarge, MediaUndecodable, TooManyImages
from foveate.core.media import InlineRef
from foveate.journey.port import ItemEstimate

AT = "messages[0].content[{}].image_url.url"
PICTURES = [
    {"type": "text", "text": "x"},
    {"type": "image_url", "image_url": {"url": "https://h/0"}},
    {"type": "image_url", "image_url": {"url": "https://h/1"}},
]
REFUSED = msgspec.structs.replace(
    FREE,
    admitted=False,
    complete=False,
    tier="small",
    bytes=100,
    pixels=64,
    visual_tokens=4,
    encoder_cache_hits=1,
    items=(
        ItemEstimate(0, AT.format(1), "image", 100, 8, 8, 64, 1, None, 4, encoder_cached=True),
        ItemEstimate(1, AT.format(2), "image", error=MediaUndecodable(param=AT.format(2), part=1).record()),
    ),
    adjustments=(Adjustment(0, AT.format(1), "max_image_width", "80x80", "8x8"),),
    refusals=(
        TooManyImages("Two.", param=AT.format(2), part=1, limit_name="max_images", limit=1, actual=2).record(),
        HouseFull(limit_name="max_tenant_bytes", limit=5, actual=6, retry_after_seconds=3).record(),
    ),
)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_price(stream: bool) -> None:
    service = FakeService(callers={"k": Caller("ada", Budget(tier="t"))})
    async with client(service) as http:
        answer = await http.post("/v1/estimate", json=chat(stream=stream), headers={"Authorization": "Bearer k"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("estimate-")
    assert answer.json() == {
        "admitted": True, "complete": True, "tier": "default", "bytes": 0, "pixels": 0, "frames": 0, "text_tokens": 7, "visual_tokens": 0,
        "processor_cache_hits": 0, "encoder_cache_hits": 0, "items": [], "adjustments": [], "refusals": [],
    }  # fmt: skip
    assert service.requests[0].caller.tenant == "ada"
    assert service.ended == []


async def test_what_would_not_be_admitted_is_told_and_why() -> None:
    service = FakeService(estimated=REFUSED)
    async with client(service) as http:
        answer = await http.post("/v1/estimate", json=with_parts(*PICTURES))
    assert answer.status_code == 200
    told = answer.json()
    assert (told["admitted"], told["complete"], told["tier"]) == (False, False, "small")
    assert told["refusals"] == [
        {
            "message": "Two.", "type": "invalid_request_error", "param": AT.format(2), "code": "too_many_images",
            "status": 400, "retryable": False, "part": 2, "limit_name": "max_images", "limit": 1, "actual": 2,
        },
        {
            "message": HouseFull.sentence, "type": "overloaded_error", "param": None, "code": "media_capacity_full",
            "status": 429, "retryable": True, "retry_after_seconds": 3, "limit_name": "max_tenant_bytes", "limit": 5, "actual": 6,
        },
    ]  # fmt: skip
    first, second = told["items"]
    assert first == {
        "part": 1, "param": AT.format(1), "kind": "image", "bytes": 100, "width": 8, "height": 8, "pixels": 64, "frames": 1,
        "seconds": None, "visual_tokens": 4, "processor_cached": False, "encoder_cached": True, "media_cached": False, "error": None,
    }  # fmt: skip
    assert (second["part"], second["visual_tokens"]) == (2, None)
    assert (second["error"]["code"], second["error"]["status"], second["error"]["part"]) == (
        "media_undecodable",
        422,
        2,
    )
    assert told["adjustments"] == [
        {"part": 1, "param": AT.format(1), "limit_name": "max_image_width", "before": "80x80", "after": "8x8"}
    ]


async def test_large_bodies_go_through_the_arena() -> None:
    service = FakeService(unpacking=unpack)
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(json.dumps(large(2)).encode(), path="/v1/estimate")
        assert (await raw.reply())[0] == 200
    assert [image.ref for image in service.requests[0].images] == [InlineRef(0), InlineRef(1)]
    assert len(service.buffers) == 1
    assert (service.open_buffers, service.open_blobs) == (0, 0)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_parameter"),
        (b"", 400, "invalid_parameter"),
        (json.dumps(chat(temperature=9)).encode(), 400, "invalid_parameter"),
        (json.dumps(chat(guided_json={})).encode(), 400, "unsupported_parameter"),
        (json.dumps(chat(model="gpt")).encode(), 404, "model_not_found"),
        (json.dumps({"prompt": "x"}).encode(), 400, "invalid_parameter"),
    ],
)
async def test_what_is_no_request_is_an_error(body: bytes, status: int, code: str) -> None:
    service = FakeService()
    async with client(service) as http:
        answer = await http.post("/v1/estimate", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert service.refusals == [code]


@pytest.mark.parametrize(
    ("error", "status"), [(Draining(), 503), (ImageTooLarge(), 413), (ZeroDivisionError("secret"), 500)]
)
async def test_failures(error: Any, status: int) -> None:
    service = FakeService(before=[error])
    async with client(service) as http:
        answer = await http.post("/v1/estimate", json=chat())
    assert answer.status_code == status
    assert "secret" not in answer.text
    assert not service.refusals, "the journey recorded what it had opened"
