"""Keep a server busy as its users would, and take down what each of them saw.

Arrivals are a schedule that does not wait for the server (open loop), so that a slow one is not asked less often; conversations go turn by
turn.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from foveate.bench.client import Connection
from foveate.bench.server import HOST

CLIENTS_MAX: Final = 128
"""Requests that may be open at once. One that finds none free is late, and its lateness counts."""


class Ask(msgspec.Struct, frozen=True):
    """A request: when, in seconds from the start, its modality, its body, and a name by which the systems' answers are compared."""

    at: float
    kind: str
    name: str
    body: bytes


class Told(msgspec.Struct, frozen=True):
    """An answer: milliseconds from the moment that the request was due to its first token, what was said, and its ``Server-Timing``."""

    kind: str
    name: str
    ttft_ms: float
    text: str
    status: int
    timing: dict[str, float] = {}


def arrivals(rate: float, count: int, chooser: random.Random) -> list[float]:
    """Return ``count`` moments in seconds of a Poisson process of ``rate`` a second."""
    moments: list[float] = []
    moment = 0.0
    for _ in range(count):
        moment += chooser.expovariate(rate)
        moments.append(moment)
    return moments


def drive(port: int, asks: Sequence[Ask]) -> list[Told]:
    """Send every request when it is due, whatever has become of the others; return the answers in the order of arrival."""
    started = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS_MAX) as clients:
        asked = []
        for ask in sorted(asks, key=lambda each: each.at):
            time.sleep(max(0.0, started + ask.at - time.perf_counter()))
            asked.append(clients.submit(_ask, port, ask, started + ask.at))
        return [each.result() for each in asked]


def converse(port: int, conversations: Sequence[Sequence[Ask]]) -> list[Told]:
    """Hold conversations at once, each turn when the answer to the last one is there; the first turn's ``at`` says when each begins."""

    def hold(turns: Sequence[Ask]) -> list[Told]:
        time.sleep(turns[0].at)
        return [_ask(port, turn, time.perf_counter()) for turn in turns]

    with ThreadPoolExecutor(len(conversations)) as clients:
        return [told for conversation in clients.map(hold, conversations) for told in conversation]


def _ask(port: int, ask: Ask, due: float) -> Told:
    late_ms = (time.perf_counter() - due) * 1e3
    # A connection of its own: servers close idle ones after a time of their choice.
    before = time.perf_counter()
    with Connection(HOST, port) as connection:
        connected_ms = (time.perf_counter() - before) * 1e3
        found = connection.ask(ask.body)
    return Told(ask.kind, ask.name, late_ms + connected_ms + found.token_ms, found.text, found.status, found.timing)
