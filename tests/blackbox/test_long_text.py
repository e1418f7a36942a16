"""A text far beyond the context is refused by its length; it does not hold up others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
from tests.blackbox.server import Server

CHAT = "/v1/chat/completions"


def test_long_texts_are_refused_while_a_stream_goes_on(server: Server, http: httpx.Client) -> None:
    """Two dozen of them at once: each is refused for what it is, none is an error of ours, and the stream is whole."""
    body = {"messages": [{"role": "user", "content": "word " * 190_000}]}
    stream = {
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": 200,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }

    def long_text(_: int) -> httpx.Response:
        with server.client() as client:
            return client.post(CHAT, json=body)

    with ThreadPoolExecutor(4) as pool, http.stream("POST", CHAT, json=stream) as answer:
        refusals = pool.map(long_text, range(24))
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
        for reply in refusals:
            assert reply.status_code == 400
            assert reply.json()["error"]["code"] == "context_length_exceeded"
            assert reply.json()["error"]["limit"] == 4096
    assert lines[-1] == "data: [DONE]"
    assert sum('"content":' in line for line in lines) > 50
