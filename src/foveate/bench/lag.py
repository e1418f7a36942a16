"""How long the gateway's event loop is held up while 20 MB bodies of inline pictures arrive."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from foveate.bench.client import Connection, chat_body
from foveate.bench.figures import Figure
from foveate.bench.idle_loop import beside
from foveate.bench.pictures import data_url, encoded, photograph
from foveate.bench.server import HOST, Running, running

BODY_BYTES = 20 * 10**6
BODIES_AT_ONCE = 4
BODIES = 8


def run(rounds: int) -> list[Figure]:
    """Send bursts of large bodies and read the probe's 99th percentile from ``/metrics`` after each."""
    lags: list[float] = []
    idle: list[float] = []
    with running("--max-images", "64") as server:
        body = _large_body(server)
        for _ in range(rounds):
            with beside() as idle_loop:
                _burst(server, body)
                lags.append(server.metric("foveate_event_loop_lag_p99_seconds") * 1e3)
                idle.append(idle_loop())
    what = f"{BODIES_AT_ONCE} clients at once, {BODIES} bodies of {len(body) / 1e6:.0f} MB in each of {rounds} rounds"
    return [
        Figure("Event-loop lag p99 under 20 MB bodies", f"{what}; the product's own probe", tuple(lags), "ms", 5.0),
        Figure("The same probe in an idle process beside it", f"{what}; the scheduler's share", tuple(idle), "ms"),
    ]


def _burst(server: Running, body: bytes) -> None:
    with ThreadPoolExecutor(BODIES_AT_ONCE) as clients:
        for status in clients.map(lambda _: _ask(server, body), range(BODIES)):
            if status != 200:
                raise AssertionError(f"a large body was answered with status {status}")


def _ask(server: Running, body: bytes) -> int:
    with Connection(HOST, server.port) as connection:
        return connection.ask(body).status


def _large_body(server: Running) -> bytes:
    parts: list[dict[str, Any]] = []
    size = 0
    while size < BODY_BYTES:
        url = data_url(encoded(photograph(1920, 1080, 500 + len(parts)), quality=97))
        parts.append({"type": "image_url", "image_url": {"url": url}})
        size += len(url)
    return chat_body([*parts, {"type": "text", "text": "Describe the images."}], model=server.model, tokens=4)
