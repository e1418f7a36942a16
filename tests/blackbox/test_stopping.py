"""SIGTERM: nothing new is admitted, what is open is finished, then all ends; a second one ends it at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
from tests.blackbox.field_cases.marks import field_case
from tests.blackbox.origins import Origin, body, held
from tests.blackbox.pictures import ask, chat, encoded, one, user
from tests.blackbox.replies import events, joined
from tests.blackbox.server import COMMAND, HTTP, Server, environment, eventually, free_port

CHAT = "/v1/chat/completions"
LONG = chat(user("Hello!"), max_tokens=500, ignore_eos=True, stream=True, stream_options={"include_usage": True})


def not_admitting(server: Server) -> bool:
    """Return whether a new request is refused: with 503 and when to come back, or by not connecting."""
    try:
        response = HTTP.post(f"{server.base_url}{CHAT}", json=chat(user("Hello!"), max_tokens=1), timeout=10)
    except httpx.TransportError:
        return True
    if response.status_code == 200:
        return False
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "shutting_down"
    return True


@field_case(129, "SIGTERM during a stream", "the stream is finished; new requests 503 `shutting_down`")
def test_open_streams_are_finished(start: Callable[..., Server]) -> None:
    server = start(forked=False)
    with server.client() as http, http.stream("POST", CHAT, json=LONG) as response:
        lines = response.iter_lines()
        seen = [next(lines) for _ in range(6)]
        server.send_signal(signal.SIGTERM)
        eventually("no more requests to be admitted", lambda: not_admitting(server))
        chunks = events([*seen, *lines])
    assert chunks[-1]["usage"]["completion_tokens"] == 500
    assert joined(chunks)
    server.assert_ended(0)


@field_case(129, "two SIGTERMs during a download", "ends at once, and is in the log")
def test_second_signal_ends_at_once(start: Callable[..., Server], web: Origin) -> None:
    """The open request waits for an origin that never answers, so only the second signal can be what ended it."""
    gate = threading.Event()
    web.pages["/never.png"] = held(gate, body(encoded(one("red", "circle"))))
    server = start(
        "--fetch-http-allowed",
        "--fetch-private-networks",
        "127.0.0.1/32",
        "--fetch-ports",
        str(web.port),
        "--fetch-read-seconds",
        "120",
        "--fetch-total-seconds",
        "120",
        "--server-drain-seconds",
        "120",
    )

    def send() -> int | None:
        try:
            with server.client(seconds=100) as http:
                return http.post(CHAT, json=ask(f"{web.url}/never.png")).status_code
        except httpx.TransportError:
            return None

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(send)
        eventually("the origin to be asked", lambda: web.gets["/never.png"])
        server.send_signal(signal.SIGTERM)
        eventually("no more requests to be admitted", lambda: not_admitting(server))
        assert server.process.poll() is None
        server.send_signal(signal.SIGTERM)
        server.assert_ended(None)
        assert not gate.is_set()
        assert waiting.result() in (None, 503)
        gate.set()
    assert [record["modality"] for record in server.records() if record["images"]] == ["multimodal"], "not in the log"


@field_case(129, "SIGTERM during a stream longer than the drain", "`shutting_down` as its last event")
def test_deadline_of_the_drain(start: Callable[..., Server]) -> None:
    """A stream that is longer than the deadline is ended by it, with a typed error as its last word."""
    server = start("--server-drain-seconds", "0.5")
    with server.client() as http, http.stream("POST", CHAT, json={**LONG, "max_tokens": 3900, "n": 8}) as response:
        lines = response.iter_lines()
        seen = [next(lines) for _ in range(6)]
        server.send_signal(signal.SIGTERM)
        chunks = events([*seen, *lines])
    assert [chunk["error"]["code"] for chunk in chunks if "error" in chunk] == ["shutting_down"]
    server.assert_ended(0)


def test_stop_while_loading(start: Callable[..., Server]) -> None:
    server = start(ready=False, forked=False)
    eventually("the engine to be started", lambda: server.titled("foveate: engine 0"))
    server.send_signal(signal.SIGTERM)
    server.assert_ended(None)


def test_closing_the_terminal_ends_the_server() -> None:
    """SIGHUP reloads a service; a server whose terminal is gone must not live on unseen."""
    port = free_port()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "--host", "127.0.0.1", "--port", str(port)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    os.set_blocking(ours, False)

    def ready() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 65536)  # or the server waits for room to write
        try:
            return HTTP.get(f"http://127.0.0.1:{port}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            assert process.poll() is None
            return False

    try:
        eventually("the server to be ready", ready)
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        os.close(ours)
        assert process.wait(30) == 0
        _, alive = psutil.wait_procs(started, timeout=15)
        assert not alive
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
