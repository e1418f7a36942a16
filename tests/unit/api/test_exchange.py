"""One request from its first byte to its last, through a real server: leaving clients, failures early and late."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.unit.api.fake import TIMING, FakeService, chat, finish, serving, token
from tests.unit.api.sockets import connected

from foveate.core.errors import DeadlineExceeded, EngineFailed, FetchFailed, InvalidPart, QueueFull
from foveate.engines.port import TokenEvent


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_client_that_leaves_ends_its_answer_at_once(stream: bool, where: str) -> None:
    never = asyncio.Event()
    service = FakeService()
    if where == "before":
        service.before = [never]
    else:
        service.script = [token("a"), never]
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat(stream=stream))
        await service.entered.wait()
        if stream and where == "after":
            await raw.until(b'"a"')
        raw.abort()
        await service.left.wait()
    assert service.ended == ["CancelledError"]


async def test_a_client_that_leaves_while_it_uploads(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService()
    async with serving(service) as server, connected(server.port) as raw:
        await raw.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b" " * 50_000
        )
        await service.entered.wait()
        raw.abort()
        await service.left.wait()
    assert service.open_buffers == 0
    assert service.requests == []
    assert not [record for record in caplog.records if record.name.startswith("foveate") or record.exc_info]


async def test_a_client_that_leaves_after_its_answer_disturbs_nothing() -> None:
    service = FakeService()
    async with serving(service) as server:
        for _ in range(20):
            async with connected(server.port) as raw:
                await raw.post(chat(stream=True))
                await raw.until(b"[DONE]\n\n")
                raw.abort()
        while service.open_answers:
            await asyncio.sleep(0)
    assert service.ended == ["whole"] * 20


async def test_headers_wait_for_the_first_token() -> None:
    gate = asyncio.Event()
    service = FakeService(before=[gate])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat(stream=True))
        await service.entered.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(raw.reader.read(1), 0.05)
        gate.set()
        status, headers = await raw.head()
    assert status == 200
    assert headers["server-timing"] == TIMING
    assert headers["x-request-id"] == service.requests[0].id


async def test_every_token_is_sent_at_once() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    service = FakeService(script=[token("one"), gates[0], token("two"), gates[1], finish()])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat(stream=True))
        await raw.until(b'"one"')
        gates[0].set()
        await raw.until(b'"two"')
        gates[1].set()
        await raw.until(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_is_a_status(stream: bool) -> None:
    service = FakeService(before=[InvalidPart("Bad.", param="messages[0].content[0]", part=0, detail="/srv/secret")])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat(stream=stream))
        status, headers, body = await raw.reply()
        assert status == 400
        assert headers["server-timing"] == TIMING
        assert headers["content-type"] == "application/json"
        assert body == {
            "error": {
                "message": "Bad.", "type": "invalid_request_error", "param": "messages[0].content[0]",
                "code": "invalid_content_part", "status": 400, "retryable": False, "part": 0,
            }
        }  # fmt: skip
        assert service.ended == ["InvalidPart"]
        # The connection is as good as new.
        service.before = []
        await raw.post(chat())
        assert (await raw.reply())[0] == 200


@pytest.mark.parametrize(
    ("error", "status", "header"),
    [(QueueFull(retry_after_seconds=7), 429, "7"), (FetchFailed(), 502, None), (DeadlineExceeded(), 504, None)],
)
async def test_statuses(error: Exception, status: int, header: str | None) -> None:
    async with serving(FakeService(before=[error])) as server, connected(server.port) as raw:
        await raw.post(chat())
        got, headers, _ = await raw.reply()
    assert got == status
    assert headers.get("retry-after") == header


async def test_a_failure_after_the_first_token_is_a_frame() -> None:
    service = FakeService(script=[token("a"), EngineFailed(detail="worker 7 at 0x7f0000000000")])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat(stream=True), "Connection: close")
        text = await raw.rest()
    frames = [line for line in text.split(b"\r\n") if line.startswith(b"data: ")]
    assert b'"content":"a"' in frames[-2]
    failure, done = frames[-1].split(b"\n\n")[:2]
    assert done == b"data: [DONE]"
    error = json.loads(failure.removeprefix(b"data: "))["error"]
    assert error["code"] == "engine_failed"
    assert b"0x7f" not in text
    assert text.count(b"[DONE]") == 1
    assert text.endswith(b"0\r\n\r\n")
    assert service.ended == ["EngineFailed"]


async def test_a_failure_of_a_whole_answer_midway_is_a_status() -> None:
    service = FakeService(script=[token("a"), EngineFailed()])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat())
        status, _, body = await raw.reply()
    assert status == 500
    assert body["error"]["code"] == "engine_failed"


async def test_an_unexpected_failure_midway_is_a_frame_too(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService(script=[token("a"), ValueError("secret")])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat(stream=True), "Connection: close")
        text = await raw.rest()
    assert b'"code":"internal_error"' in text
    assert b"secret" not in text
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_refused_requests_never_reach_the_service() -> None:
    service = FakeService()
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat(temperature=5))
        status, headers, body = await raw.reply()
    assert (status, body["error"]["param"]) == (400, "temperature")
    assert "server-timing" not in headers
    assert service.requests == []


async def test_every_refusal_is_recorded_once() -> None:
    service = FakeService(before=[InvalidPart()])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(b"{}")
        await raw.until(b"}}")
        await raw.post(chat(no_such_parameter=1))
        await raw.until(b"}}")
        await raw.post(chat())
        await raw.until(b"invalid_content_part")
    # The journey records the third itself.
    assert service.refusals == ["invalid_parameter", "invalid_parameter"]


async def test_request_ids() -> None:
    async with serving(FakeService()) as server, connected(server.port) as raw:
        for theirs, echoed in (("abc-1", "abc-1"), ("x" * 129, None), ("a b", None), ("\x01", None)):
            await raw.post(chat(), f"X-Request-Id: {theirs}")
            status, headers = await raw.head()
            if status == 400:
                # A control character in a header never reaches the application.
                return
            await raw.reader.readexactly(int(headers["content-length"]))
            assert headers.get("x-client-request-id") == echoed
            assert headers["x-request-id"].startswith("chatcmpl-")


async def test_the_number_of_open_requests_is_bounded() -> None:
    gate = asyncio.Event()
    service = FakeService(before=[gate])
    async with (
        serving(service, open_max=1) as server,
        connected(server.port) as first,
        connected(server.port) as second,
    ):
        await first.post(chat())
        await service.entered.wait()
        await second.post(chat())
        status, headers, body = await second.reply()
        assert (status, headers["retry-after"], body["error"]["code"]) == (429, "1", "queue_full")
        gate.set()
        assert (await first.reply())[0] == 200
        await second.post(chat())


async def test_a_log_line_stays_short(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="foveate")
    url = "data:image/png;base64," + "A" * 3000
    bodies = [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, "detail": 5}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url + "!"}]}]},
    ]
    service = FakeService(before=[EngineFailed(detail="d" * 100_000)])
    async with serving(service) as server, connected(server.port) as raw:
        for body in bodies:
            await raw.post(body)
            await raw.reply()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("foveate")]
    assert len(lines) == 2
    assert all(len(line) < 2048 and "AAAA" not in line for line in lines)


async def test_pipelined_requests_are_answered_in_order() -> None:
    service = FakeService(script=[token("a"), finish()])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat())
        await raw.post(chat(temperature=9))
        await raw.post(chat())
        assert [(await raw.reply())[0] for _ in range(3)] == [200, 400, 200]
    assert isinstance(service.script[0], TokenEvent)
