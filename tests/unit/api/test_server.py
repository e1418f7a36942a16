"""Binding, serving and stopping; limits on connections."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket

import pytest
from tests.unit.api.fake import FakeService, chat, finish, serving, token
from tests.unit.api.sockets import connected

from foveate.api.protocol import ConnectionLimits
from foveate.api.server import bind
from foveate.core.errors import StartupError


def test_a_taken_port_is_told_in_one_line() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StartupError) as caught:
            bind("127.0.0.1", port)
    assert caught.value.public == f"Port {port} is taken. Stop the process that uses it, or choose another with --port."


def test_a_foreign_address_is_told_in_one_line() -> None:
    with pytest.raises(StartupError) as caught:
        bind("192.0.2.1", 0)
    assert "192.0.2.1" in caught.value.public
    with pytest.raises(StartupError):
        bind("no such host", 0)


def test_the_port_is_free_again_at_once() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    bind("127.0.0.1", port).close()


async def test_a_stop_lets_open_streams_finish() -> None:
    gate = asyncio.Event()
    service = FakeService(script=[token("a"), gate, token("b"), finish()])
    async with serving(service) as server, connected(server.port) as raw, connected(server.port) as idle:
        await raw.post(chat(stream=True))
        await raw.until(b'"a"')
        port = server.port
        stopping = asyncio.create_task(server.stop(30.0))
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        gate.set()
        assert b"[DONE]" in await raw.rest()
        await stopping
    assert service.ended == ["whole"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_deadline_of_a_stop_ends_what_is_open_with_an_error(stream: bool) -> None:
    service = FakeService(script=[token("a"), asyncio.Event()])
    async with serving(service) as server, connected(server.port) as raw:
        await raw.post(chat(stream=stream))
        await service.entered.wait()
        if stream:
            await raw.until(b'"a"')
        await server.stop(0.05)
        told = await raw.rest()
    assert b'"code":"shutting_down"' in told
    assert told.startswith(b"HTTP/1.1 503") != stream
    assert (b"[DONE]" in told) == stream
    assert service.ended == ["CancelledError"]
    assert service.open_answers == 0


async def test_an_upload_is_ended_too() -> None:
    service = FakeService()
    async with serving(service) as server, connected(server.port) as raw:
        await raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{")
        await service.entered.wait()
        await server.stop(0.0)
        assert b'"code":"shutting_down"' in await raw.rest()
    assert service.open_buffers == 0


async def test_leaving_the_context_ends_the_server() -> None:
    service = FakeService(before=[asyncio.Event()])
    async with contextlib.AsyncExitStack() as outer:
        async with serving(service) as server:
            raw = await outer.enter_async_context(connected(server.port))
            await raw.post(chat())
            await service.entered.wait()
        assert service.open_answers == 0
        assert (await raw.reply())[0] == 503


async def test_signal_handlers_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with serving(FakeService()):
        assert signal.getsignal(signal.SIGTERM) is before


async def test_a_head_too_long_is_refused() -> None:
    limits = ConnectionLimits(head_bytes_max=8192)
    async with serving(FakeService(), limits=limits) as server, connected(server.port) as raw:
        await raw.send(b"GET /health HTTP/1.1\r\nX: " + b"y" * 400_000)
        status, _, body = await raw.reply()
        assert status == 400
        assert body["error"]["message"] == "The request's headers are too long."
        assert await raw.rest() == b""


async def test_a_head_that_does_not_come() -> None:
    limits = ConnectionLimits(head_seconds_max=0.05)
    async with serving(FakeService(), limits=limits) as server:
        async with connected(server.port) as silent:
            assert await silent.rest() == b""
        async with connected(server.port) as slow:
            await slow.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await slow.reply())[0] == 200
            await slow.send(b"GET /health HTTP/1.1\r\n")
            assert await slow.rest() == b""


async def test_the_limits_on_heads_do_not_touch_bodies_and_answers() -> None:
    limits = ConnectionLimits(head_bytes_max=1024, head_seconds_max=0.05)
    gate = asyncio.Event()
    service = FakeService(script=[token("a"), gate, finish()], inline_bytes_min=1 << 20, body_bytes_max=1 << 20)
    async with serving(service, limits=limits) as server, connected(server.port) as raw:
        body = chat(messages=[{"role": "user", "content": "x" * 200_000}], stream=True)
        for _ in range(2):
            gate.clear()
            await raw.post(body)
            await raw.until(b'"a"')
            await asyncio.sleep(0.1)
            gate.set()
            await raw.until(b"0\r\n\r\n")


async def test_the_end_of_a_body_does_not_count_as_the_next_head() -> None:
    limits = ConnectionLimits(head_bytes_max=1024)
    async with serving(FakeService(inline_bytes_min=1 << 20), limits=limits) as server, connected(server.port) as raw:
        body = b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"x" * 8000)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        await raw.send(head + body + b"GET /hea")
        assert (await raw.reply())[0] == 200
        await raw.send(b"lth HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await raw.reply())[0] == 200


async def test_a_client_that_stops_reading_is_dropped() -> None:
    limits = ConnectionLimits(stalled_seconds_max=0.1)
    service = FakeService(script=[token("x" * 100_000) for _ in range(2000)] + [finish()])
    async with serving(service, limits=limits) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            body = b'{"messages":[{"role":"user","content":"x"}],"stream":true}'
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            await service.left.wait()
    assert service.ended == ["CancelledError"]


async def test_what_is_no_http_gets_the_error_shape() -> None:
    async with serving(FakeService()) as server, connected(server.port) as raw:
        await raw.send(b"\x16\x03\x01\x00\xff\r\n\r\n")
        status, _, body = await raw.reply()
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")


async def test_the_number_of_connections_is_bounded() -> None:
    limits = ConnectionLimits(connections_max=1)
    async with serving(FakeService(), limits=limits) as server, connected(server.port) as first:
        await first.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await first.reply())[0] == 200
        async with connected(server.port) as second:
            assert await second.rest() == b""
