from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.runtime.local import channel as module
from foveate.runtime.local.channel import (
    FrameReader,
    FrameTooLarge,
    GatewayChannel,
    GatewayGone,
    WorkerChannel,
    frame,
)


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Pair:
    """Both ends of a channel, the worker's without a process."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.faults: asyncio.Queue[str] = asyncio.Queue()

    async def open(self) -> Pair:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.gateway = GatewayChannel(
            Text, on_message=self.take, on_closed=self.closed.set, on_fault=self.faults.put_nowait
        )
        await asyncio.get_running_loop().create_unix_connection(lambda: self.gateway, sock=ours)
        self.worker = WorkerChannel(self.theirs)
        self.worker.expect(Text)
        return self

    def take(self, message: Text) -> None:
        if message.text == "raise":
            raise RuntimeError("the owner's fault")
        self.messages.put_nowait(message)

    async def close(self) -> None:
        self.gateway.abort()
        self.theirs.close()
        await self.closed.wait()


@pytest.fixture
async def pair():
    pair = await Pair().open()
    yield pair
    await pair.close()


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 40), max_size=30))
def test_frames_survive_any_cutting(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    reader, found, at = FrameReader(), [], 0
    for size in [*cuts, len(stream)]:
        reader.feed(stream[at : at + size])
        at += size
        while (payload := reader.next()) is not None:
            found.append(payload)
    assert found == payloads


def test_a_length_beyond_the_limit_is_refused_before_its_bytes_arrive() -> None:
    with pytest.raises(FrameTooLarge):
        FrameReader().feed(struct.pack("<I", module.FRAME_BYTES_MAX + 1))


def test_messages_beyond_the_limit_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRAME_BYTES_MAX", 100)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(FrameTooLarge):
        WorkerChannel(ours).send(Text("x" * 100))
    with pytest.raises(FrameTooLarge):
        frame(b"x" * 101)


async def test_large_messages_pass_both_ways(pair: Pair) -> None:
    text = "x" * 3_000_000
    pair.gateway.send(Text(text))
    got = await asyncio.to_thread(pair.worker.receive, 10)
    await asyncio.to_thread(pair.worker.send, got)
    assert await pair.messages.get() == Text(text)


async def test_a_peer_that_does_not_read_never_blocks_the_sender(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_BYTES_MAX", 2_000_000)
    for _ in range(10):
        pair.gateway.send(Text("x" * 500_000))
    assert "wait for it to read" in await pair.faults.get()


async def test_a_message_of_the_wrong_type_is_a_fault(pair: Pair) -> None:
    pair.theirs.sendall(frame(msgspec.msgpack.encode({"type": "other"})))
    assert "does not fit its type" in await pair.faults.get()
    pair.theirs.sendall(struct.pack("<I", module.FRAME_BYTES_MAX + 1))
    assert "are allowed" in await pair.faults.get()


async def test_a_failing_owner_does_not_cost_the_next_message(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.worker.send(Text("raise"))
    pair.worker.send(Text("next"))
    assert await pair.messages.get() == Text("next")
    assert "the owner's fault" in caplog.text


async def test_finish_ends_the_workers_stream_but_not_the_gateways(pair: Pair) -> None:
    pair.gateway.send(Text("last"))
    pair.gateway.finish()
    assert await asyncio.to_thread(pair.worker.receive) == Text("last")
    assert await asyncio.to_thread(pair.worker.receive) is None
    assert await asyncio.to_thread(pair.worker.receive, 0.0) is None
    assert pair.worker.pending()
    pair.worker.send(Text("reply"))
    assert await pair.messages.get() == Text("reply")
    assert not pair.closed.is_set()
    pair.gateway.send(Text("into the void"))
    pair.gateway.finish()


async def test_the_workers_end_is_noticed_after_its_last_message(pair: Pair) -> None:
    pair.worker.send(Text("last"))
    pair.theirs.close()
    await pair.closed.wait()
    assert pair.messages.get_nowait() == Text("last")
    pair.gateway.send(Text("nobody"))


async def test_receive_in_time_and_pending(pair: Pair) -> None:
    assert not pair.worker.pending()
    with pytest.raises(TimeoutError):
        pair.worker.receive(0.01)
    half = frame(msgspec.msgpack.encode(Text("whole")))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = WorkerChannel(theirs)
        worker.expect(Text)
        ours.sendall(half[:7])
        assert not worker.pending(), "half a message is not a message"
        with pytest.raises(TimeoutError):
            worker.receive(0)
        ours.sendall(half[7:])
        assert worker.pending()
        assert worker.receive(0) == Text("whole")


def test_sending_to_a_gateway_that_is_gone_says_so() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(GatewayGone):
        WorkerChannel(theirs).send(Text("hello"))


def test_a_gateway_that_died_with_unread_messages_is_an_ended_stream() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        worker = WorkerChannel(theirs)
        worker.expect(Text)
        worker.send(Text("unread"))
        ours.close()  # the kernel resets the connection
        assert worker.receive(5) is None


async def test_threads_send_whole_messages(pair: Pair) -> None:
    def send(letter: str) -> None:
        for _ in range(20):
            pair.worker.send(Text(letter * 70_000))

    threads = [threading.Thread(target=send, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    got = [await pair.messages.get() for _ in range(60)]
    for thread in threads:
        thread.join()
    assert sorted(message.text[0] for message in got) == sorted("abc" * 20)
    assert all(message.text == message.text[0] * 70_000 for message in got)
