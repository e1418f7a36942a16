"""What one request costs, another does not pay. Nothing here looks at a clock: order and content tell."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from tests.blackbox.field_cases.marks import ANSWERED, field_case
from tests.blackbox.origins import Origin, body, held
from tests.blackbox.pictures import ask, chat, data_url, encoded, image, noise, one, user
from tests.blackbox.replies import content, events, joined, stream
from tests.blackbox.server import Server, eventually

CHAT = "/v1/chat/completions"
HELLO = chat(user("Hello!"))
LONG = chat(user("Hello!"), max_tokens=150, ignore_eos=True)


@pytest.fixture(scope="module")
def twenty_megabytes() -> list[bytes]:
    """Three bodies of inline pictures, about 20 MB each, no picture twice."""
    pictures = [data_url(noise(seed, 800)) for seed in range(24)]
    bodies = [
        chat(user(*(image(url) for url in pictures[start : start + 8]), "x"), max_tokens=2) for start in (0, 8, 16)
    ]
    return [json.dumps(made).encode() for made in bodies]


@field_case(103, "three bodies of 20 MB beside a text stream", ANSWERED)
def test_a_stream_is_unharmed_by_20_mb_bodies(
    server: Server, http: httpx.Client, twenty_megabytes: list[bytes]
) -> None:
    assert all(len(made) > 20e6 for made in twenty_megabytes)
    alone = content(http.post(CHAT, json=LONG))

    def send(made: bytes) -> dict[str, Any]:
        with server.client() as client:
            response = client.post(CHAT, content=made, headers={"content-type": "application/json"})
            assert response.status_code == 200, response.text
            return dict(response.json())

    with ThreadPoolExecutor(3) as pool:
        sending = [pool.submit(send, made) for made in twenty_megabytes]
        streams = 0
        while not all(task.done() for task in sending) or not streams:
            _, chunks = stream(http, LONG)
            assert joined(chunks) == alone
            streams += 1
        assert [task.result()["usage"]["prompt_tokens_details"]["images"] for task in sending] == [8, 8, 8]
    assert server.metrics().has("foveate_event_loop_lag_p99_seconds")


def test_memory_of_large_bodies_is_given_back(server: Server, twenty_megabytes: list[bytes]) -> None:
    def not_cached() -> float:
        now = server.metrics()
        cached = now.total("foveate_encoder_cache_bytes") + now.total("foveate_processor_cache_bytes")
        return now.total("foveate_arena_used_bytes") - cached

    server.wait_idle()
    before = not_cached()
    for made in twenty_megabytes[:2]:
        with server.client() as client:
            assert client.post(CHAT, content=made, headers={"content-type": "application/json"}).status_code == 200
    server.wait_idle()
    eventually("the bodies' memory to be free", lambda: not_cached() <= before + 65536)


@field_case(29, "70 requests that wait for a slow origin: text is answered meanwhile", ANSWERED)
def test_slow_origins_do_not_delay_text(server: Server, http: httpx.Client, web: Origin) -> None:
    """More requests than there are places for multimodal ones hang on their origin; text is answered meanwhile."""
    gate = threading.Event()
    paths = [f"/slow{number}.png" for number in range(70)]
    for path in paths:
        web.pages[path] = held(gate, body(encoded(one("red", "circle"))))
    before = server.metrics().total("foveate_requests_in_flight", modality="multimodal")

    def send(path: str) -> str:
        with server.client() as client:
            return content(client.post(CHAT, json=ask(f"{web.url}{path}")))

    with ThreadPoolExecutor(len(paths)) as pool:
        answers = [pool.submit(send, path) for path in paths]
        eventually(
            "all to be in flight",
            lambda: server.metrics().total("foveate_requests_in_flight", modality="multimodal") == before + len(paths),
        )
        for _ in range(3):
            assert content(http.post(CHAT, json=HELLO))
        assert joined(stream(http, HELLO)[1])
        assert not any(answer.done() for answer in answers)
        gate.set()
        assert {answer.result() for answer in answers} == {"A red circle."}


def test_long_prefill_does_not_change_running_streams(server: Server, http: httpx.Client) -> None:
    alone = content(http.post(CHAT, json=LONG))
    long_prompt = chat(user("What is in this image? " * 300), max_tokens=2)

    def prefill(_: int) -> None:
        with server.client() as client:
            content(client.post(CHAT, json=long_prompt))

    with http.stream("POST", CHAT, json={**LONG, "stream": True}) as response, ThreadPoolExecutor(4) as pool:
        lines = response.iter_lines()
        seen = [next(lines) for _ in range(8)]
        list(pool.map(prefill, range(8)))
        assert joined(events([*seen, *lines])) == alone


@field_case(104, "a client that leaves a stream", "cancelled; nothing in flight")
def test_leaving_a_stream_frees_it(server: Server, ai: openai.OpenAI, model: str) -> None:
    server.wait_idle()
    options: Any = {
        "model": model,
        "messages": [user("Hello!")],
        "max_tokens": 3500,
        "extra_body": {"ignore_eos": True},
    }
    running = ai.chat.completions.create(**options, stream=True)
    chunks = iter(running)
    request_id = [next(chunks) for _ in range(4)][-1].id
    assert server.metrics().total("foveate_requests_in_flight", modality="text") == 1
    running.close()
    server.wait_idle()
    record = server.record(request_id)
    assert record["outcome"] == "cancelled"
    assert record["output_tokens"] < 3500


@field_case(104, "a client that leaves before a whole answer was ready", "cancelled; nothing in flight")
@pytest.mark.parametrize("pictured", [False, True], ids=["text", "picture"])
def test_leaving_before_the_answer_frees_it(server: Server, pictured: bool) -> None:
    """A client that is gone before a whole answer was ready; the answer is not computed to its end."""
    server.wait_idle()
    before = server.metrics()
    question = ask(data_url(encoded(one("red", "star", seed=321)))) if pictured else HELLO
    with server.client(seconds=0.5) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(CHAT, json={**question, "max_tokens": 3500, "ignore_eos": True, "n": 4})
    server.wait_idle()
    after = server.metrics()
    cancelled = {"outcome": "cancelled", "modality": "multimodal" if pictured else "text"}
    assert after.total("foveate_requests_total", **cancelled) == before.total("foveate_requests_total", **cancelled) + 1
    assert after.total("foveate_output_tokens_total") - before.total("foveate_output_tokens_total") < 4 * 3500


def test_many_that_leave_at_once(server: Server, http: httpx.Client) -> None:
    server.wait_idle()

    def leave(number: int) -> None:
        question = ask(data_url(encoded(one("blue", "star", seed=400 + number)))) if number % 2 else LONG
        endless = {**question, "max_tokens": 2000, "ignore_eos": True, "stream": number % 3 == 0}
        with (
            server.client(seconds=0.05 + number % 5 * 0.1) as client,
            contextlib.suppress(httpx.TransportError),
            client.stream("POST", CHAT, json=endless) as response,
        ):
            next(response.iter_lines())

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(leave, range(24)))
    server.wait_idle()
    assert content(http.post(CHAT, json=ask(data_url(encoded(one("red", "circle")))))) == "A red circle."
    pinned = [f"foveate_{cache}_cache_pinned_entries" for cache in ("encoder", "processor")]
    eventually("nothing pinned", lambda: all(server.metrics().total(name) == 0 for name in pinned))
