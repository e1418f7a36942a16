"""Clients that keep a server busy and record how each of their requests ended."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx
from tests.blackbox.pictures import ask, chat, data_url, encoded, one, user
from tests.blackbox.replies import assert_no_address, assert_typed, events, joined
from tests.blackbox.server import Server

COLOURS = ("red", "blue", "green", "purple")


class Ended:
    """How one request ended: an answer, or a typed error (before or after its first token)."""

    def __init__(self, said: str | None, expected: str | None, error: dict[str, Any] | None, status: int) -> None:
        self.said, self.expected, self.error, self.status = said, expected, error, status
        self.at = time.monotonic()

    @property
    def right(self) -> bool:
        return self.error is None and self.expected is not None and self.said == self.expected


class Load:
    """Clients that each send one request after the other until told to stop: text, new and repeated pictures, whole
    and streamed.

    ``ended`` has every request that ended; ``trouble`` every one that ended otherwise than it may.
    """

    def __init__(self, server: Server, clients: int, *, seconds: float = 60) -> None:
        self._server = server
        self._seconds = seconds
        self._stop = threading.Event()
        self.ended: list[Ended] = []
        self.trouble: list[str] = []
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _client(self, number: int) -> None:
        with self._server.client(seconds=self._seconds) as client:
            turn = 0
            while not self._stop.is_set():
                turn += 1
                try:
                    self.ended.append(self._one(client, number, turn))
                except (AssertionError, httpx.HTTPError, KeyError, ValueError) as error:
                    self.trouble.append(f"client {number}, request {turn}: {error!r}")

    def _one(self, client: httpx.Client, number: int, turn: int) -> Ended:
        body, expected = request(number, turn)
        if turn % 2:
            response = client.post("/v1/chat/completions", json=body)
            if response.status_code == 200:
                return Ended(response.json()["choices"][0]["message"]["content"], expected, None, 200)
            return Ended(None, expected, typed(response), response.status_code)
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                return Ended(None, expected, typed(response), response.status_code)
            chunks = events(response.iter_lines())
        errors = [chunk["error"] for chunk in chunks if "error" in chunk]
        for error in errors:
            assert_typed(error)
        assert errors or any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]), (
            "a stream without an end"
        )
        return Ended(joined(chunks), expected, errors[0] if errors else None, 200)


def request(number: int, turn: int) -> tuple[dict[str, Any], str | None]:
    """Return a body and the answer it must get (None: any)."""
    if number % 2:
        return chat(user("Hello!"), max_tokens=120, ignore_eos=True), None
    colour = COLOURS[turn % len(COLOURS)]
    picture = one(colour, "circle", seed=number * 10_000 + turn if turn % 3 else 1)
    return ask(data_url(encoded(picture))), f"A {colour} circle."


def typed(response: httpx.Response) -> dict[str, Any]:
    assert_no_address(response)
    error = json.loads(response.text)["error"]
    assert_typed(error)
    return dict(error)
