"""Processes are killed under load: every request ends with an answer or a typed error, and the server mends itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.blackbox.field_cases.marks import ANSWERED, field_case
from tests.blackbox.load import Load
from tests.blackbox.pictures import ask, chat, one, url_of, user
from tests.blackbox.replies import content
from tests.blackbox.server import Server, eventually

CHAT = "/v1/chat/completions"


def assert_well(server: Server) -> None:
    """The server is ready and answers rightly: text, a picture it has seen, and new ones."""
    eventually("the server to be ready again", server.ready)
    with server.client() as http:
        assert content(http.post(CHAT, json=chat(user("Hello!")))).startswith("Hello!")
        assert content(http.post(CHAT, json=ask(url_of(one("red", "circle"))))) == "A red circle."
        for seed in range(4):
            fresh = ask(url_of(one("blue", "square", seed=int.from_bytes(os.urandom(4), "big") // 8 * 8 + seed)))
            assert content(http.post(CHAT, json=fresh)) == "A blue square."
    server.wait_idle()
    pinned = [f"foveate_{cache}_cache_pinned_entries" for cache in ("encoder", "processor")]
    eventually("nothing pinned", lambda: all(server.metrics().total(name) == 0 for name in pinned))


def under_load(server: Server, kill: Callable[[], object]) -> Load:
    """Kill while requests run; return after more of them have ended than can have been open."""
    with Load(server, clients=8) as load:
        eventually("the load to run", lambda: len(load.ended) + len(load.trouble) >= 12)
        kill()
        seen = len(load.ended)
        eventually("requests to end after the kill", lambda: len(load.ended) + len(load.trouble) >= seen + 24)
        eventually("the server to be ready again", server.ready)
    assert load.trouble == []
    wrong = [ended for ended in load.ended if ended.error is None and ended.expected is not None and not ended.right]
    # The model itself is right about nearly every one of these pictures.
    assert len(wrong) <= len(load.ended) * 0.05, [(ended.expected, ended.said) for ended in wrong]
    return load


@field_case(101, "a media worker dies under load", "at most the request it held fails")
def test_media_worker_killed(plain: Server) -> None:
    restarts = plain.metrics().total("foveate_media_worker_restarts_total")
    killed: list[int] = []
    load = under_load(plain, lambda: killed.append(plain.kill("foveate: media 0")))
    # Work that a dead worker held is tried again elsewhere; at most what it held fails.
    assert sum(ended.error is not None for ended in load.ended) <= 1, [
        ended.error for ended in load.ended if ended.error
    ]
    assert_well(plain)
    eventually("two media workers", lambda: plain.metrics().total("foveate_media_workers") == 2)
    (again,) = eventually("a new media 0", lambda: plain.titled("foveate: media 0"))
    assert again.pid != killed[0]
    assert plain.metrics().total("foveate_media_worker_restarts_total") == restarts + 1


@field_case(124, "workers replaced again and again, by a forkserver without threads, while requests run", ANSWERED)
def test_all_media_workers_killed_again_and_again(plain: Server) -> None:
    def kill() -> None:
        for _ in range(3):
            for number in (0, 1):
                plain.kill(f"foveate: media {number}")

    under_load(plain, kill)
    assert_well(plain)


@field_case(126, "the engine with its encoder dies under load", "typed errors, then a new one")
def test_engine_killed(plain: Server) -> None:
    restarts = plain.metrics().total("foveate_engine_restarts_total")
    load = under_load(plain, lambda: plain.kill("foveate: engine 0"))
    errors = [ended.error for ended in load.ended if ended.error]
    assert {error["code"] for error in errors} <= {"engine_failed", "engine_unavailable", "queue_full", "overloaded"}, (
        errors
    )
    assert all(ended.status in (200, 500, 502, 503, 429) for ended in load.ended)
    assert_well(plain)
    assert plain.metrics().total("foveate_engine_restarts_total") == restarts + 1
    assert len(plain.titled("foveate: engine 0")) == 1


def test_engine_killed_while_idle(plain: Server) -> None:
    plain.wait_idle()
    old = plain.kill("foveate: engine 0")
    eventually("a new engine", lambda: [process for process in plain.titled("foveate: engine 0") if process.pid != old])
    assert_well(plain)


def test_one_of_two_engines_killed(start: Callable[..., Server]) -> None:
    """Its stream ends once; what had no token is answered by the other, whose stream goes on, and the server is ready all the while."""
    server = start("--engines", "2", "--engine-batch-size-max", "1", "--engine-hang-seconds", "100")
    endless = chat(user("Hello!"), stream=True, ignore_eos=True, max_tokens=3000)
    pictures = [url_of(one("blue", "square", seed=8 * number)) for number in range(6)]
    with server.client(seconds=180) as http, ThreadPoolExecutor(8) as pool, ExitStack() as held:
        for picture in pictures:  # so that they are encoded, and only wait for a row
            content(http.post(CHAT, json=ask(picture)))
        streams = [held.enter_context(http.stream("POST", CHAT, json=endless)).iter_lines() for _ in range(2)]
        for lines in streams:
            next(lines)
        engines = [server.titled(f"foveate: engine {number}")[0] for number in (0, 1)]
        for engine in engines:  # or a stream might end before all wait
            engine.suspend()
        waiting = [pool.submit(http.post, CHAT, json=ask(picture)) for picture in pictures]
        eventually("all to wait", lambda: server.metrics().total("foveate_engine_in_flight") == 8)
        assert server.metrics().total("foveate_engine_in_flight", engine="0") == 4
        server.kill("foveate: engine 0")
        engines[1].resume()
        assert server.ready()
        ends = [[line for line in lines if line] for lines in streams]
        assert all(end[-1] == "data: [DONE]" for end in ends)
        assert sorted(sum('"error"' in line for line in end) for end in ends) == [0, 1]
        assert [content(one.result()) for one in waiting] == ["A blue square."] * 6
    eventually("both to be ready", lambda: server.metrics().total("foveate_engine_ready") == 2)
    assert server.metrics().total("foveate_engine_restarts_total", engine="0") == 1
    assert server.metrics().total("foveate_engine_restarts_total") == 1
    server.wait_idle()
    server.stop()


def test_memory_is_not_lost_with_the_dead(plain: Server) -> None:
    """After all those deaths, what is in use of the arena is what the caches hold."""
    plain.wait_idle()

    def lost() -> float:
        now = plain.metrics()
        cached = now.total("foveate_encoder_cache_bytes") + now.total("foveate_processor_cache_bytes")
        return now.total("foveate_arena_used_bytes") - cached

    eventually("nothing but the caches in the arena", lambda: lost() <= 65536)


@field_case(122, "kill -9 of the gateway", "nothing left in /dev/shm, no process")
@pytest.mark.xdist_group("alone")
def test_gateway_killed(start: Callable[..., Server]) -> None:
    before = set(Path("/dev/shm").iterdir())
    server = start(forked=False)
    with server.client() as http:
        content(http.post(CHAT, json=ask(url_of(one("red", "circle")))))
    assert len(server.processes()) >= 4
    server.process.kill()
    server.assert_ended(-9)
    assert set(Path("/dev/shm").iterdir()) <= before
