"""Bodies small and large, with and without a length, and those that are refused before they have arrived."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.unit.api.fake import FakeService, chat, serving
from tests.unit.api.sockets import Raw, connected

from foveate.core.limits import SKELETON_BYTES_MAX
from foveate.core.media import Blob, InlineRef
from foveate.core.memory import Slot

INLINE = "data:image/png;base64,"


def large(pictures: int) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": INLINE + str(n) * 4000}} for n in range(pictures)]
    return {"model": "m", "messages": [{"role": "user", "content": parts}]}


def unpack(body: bytes) -> tuple[bytes, tuple[Blob, ...]]:
    """Take the pictures out, as a media worker does."""
    value = json.loads(body)
    blobs = []
    for part in value["messages"][0]["content"]:
        blobs.append(Blob(Slot(0, 1), "0" * 64))
        part["image_url"]["url"] = f"inline:{len(blobs) - 1}"
    return json.dumps(value).encode(), tuple(blobs)


async def send_chunked(raw: Raw, body: bytes, *, size: int, path: str = "/v1/chat/completions") -> None:
    await raw.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    for at in range(0, len(body), size):
        piece = body[at : at + size]
        await raw.send(b"%x\r\n%s\r\n" % (len(piece), piece))
    await raw.send(b"0\r\n\r\n")


@pytest.mark.parametrize("chunk", [0, 1000, 100_000])
async def test_a_large_body_goes_through_the_arena(chunk: int) -> None:
    service = FakeService(unpacking=unpack)
    body = json.dumps(large(3)).encode()
    async with serving(service) as server, connected(server.port) as raw:
        if chunk:
            await send_chunked(raw, body, size=chunk)
        else:
            await raw.post(body)
        assert (await raw.reply())[0] == 200
    assert b"".join(service.buffers[0].chunks) == body
    assert service.buffers[0].bytes_max == (service.body_bytes_max if chunk else len(body))
    assert [image.ref for image in service.requests[0].images] == [InlineRef(0), InlineRef(1), InlineRef(2)]
    assert service.unpacked[0] is not None
    assert len(service.unpacked[0].blobs) == 3
    assert (service.open_buffers, service.open_blobs, service.open_answers) == (0, 0, 0)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_small_body_does_not(chunked: bool) -> None:
    service = FakeService()
    body = json.dumps(chat()).encode()
    async with serving(service) as server, connected(server.port) as raw:
        if chunked:
            await send_chunked(raw, body, size=7)
        else:
            await raw.post(body)
        assert (await raw.reply())[0] == 200
    assert service.buffers == []
    assert service.unpacked == [None]


async def test_the_buffer_is_given_back_before_the_answer_and_the_pictures_after() -> None:
    gate = asyncio.Event()
    service = FakeService(unpacking=unpack, before=[gate])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(large(1))
        while not service.requests:
            await asyncio.sleep(0)
        assert (service.open_buffers, service.open_blobs, service.open_answers) == (0, 1, 1)
        gate.set()
        assert (await raw.reply())[0] == 200
    assert service.open_blobs == 0


async def test_received_at_is_when_the_last_byte_came() -> None:
    service = FakeService()
    body = json.dumps(chat()).encode()
    async with serving(service) as server, connected(server.port) as raw:
        await raw.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:-1]
        )
        await asyncio.sleep(0.05)
        before = asyncio.get_running_loop().time()
        await raw.send(body[-1:])
        await raw.reply()
    assert service.requests[0].received_at >= before


@pytest.mark.parametrize("expects", [False, True])
async def test_a_body_announced_too_large_is_refused_unread(expects: bool) -> None:
    service = FakeService()
    async with serving(service) as server, connected(server.port) as raw:
        expect = b"Expect: 100-continue\r\n" if expects else b""
        await raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: 2000000\r\n\r\n" % expect)
        status, headers, body = await raw.reply()
        assert status == 413
        assert headers["connection"] == "close"
        assert body["error"] == {
            "message": f"The request body is larger than the {service.body_bytes_max} bytes this server accepts.",
            "type": "invalid_request_error", "param": None, "code": "body_too_large", "status": 413, "retryable": False,
            "limit_name": "server.body_bytes_max",
            "limit": service.body_bytes_max, "actual": 2_000_000,
        }  # fmt: skip
        if not expects:
            await raw.send(b" " * 2_000_000)
        assert await raw.rest() == b""
    assert service.buffers == []


async def test_a_body_that_grows_too_large_is_refused_on_the_way() -> None:
    service = FakeService()
    async with serving(service) as server, connected(server.port) as raw:
        await send_chunked(raw, b" " * 3_000_000, size=100_000)
        status, _, body = await raw.reply()
    assert (status, body["error"]["code"]) == (413, "body_too_large")
    assert body["error"]["limit_name"] == "server.body_bytes_max"
    assert service.open_buffers == 0


async def test_a_body_that_does_not_come() -> None:
    async with serving(FakeService(), body_seconds_max=0.05) as server, connected(server.port) as raw:
        await raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        status, _, body = await raw.reply()
    assert (status, body["error"]["code"]) == (504, "deadline_exceeded")


async def test_too_much_beside_the_pictures() -> None:
    service = FakeService(body_bytes_max=SKELETON_BYTES_MAX * 2)
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post({"messages": [{"role": "user", "content": "x" * SKELETON_BYTES_MAX}]})
        status, _, body = await raw.reply()
        assert (status, body["error"]["limit"]) == (413, SKELETON_BYTES_MAX)
        await raw.post({"messages": [{"role": "user", "content": "x" * (SKELETON_BYTES_MAX - 100)}]})
        assert (await raw.reply())[0] == 200
    assert service.open_blobs == 0


async def test_too_many_values() -> None:
    async with serving(FakeService()) as server, connected(server.port) as raw:
        await raw.post(b'{"metadata": [' + b"[]," * 5000 + b"1]}")
        status, _, body = await raw.reply()
    assert status == 400
    assert "too many JSON values" in body["error"]["message"]


async def test_no_body() -> None:
    async with serving(FakeService()) as server, connected(server.port) as raw:
        await raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await raw.reply())[0] == 400


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Content-Type: application/json", 200),
        ("Content-Type: Application/JSON; charset=utf-8", 200),
        ("Content-Type: text/plain", 415),
        ("Content-Type: application/x-www-form-urlencoded", 415),
        ("Content-Type: multipart/form-data; boundary=x", 415),
        ("Content-Encoding: gzip", 415),
        ("Content-Encoding: identity", 200),
    ],
)
async def test_content_types(header: str, status: int) -> None:
    async with serving(FakeService()) as server, connected(server.port) as raw:
        await raw.post(chat(), header)
        assert (await raw.reply())[0] == status
