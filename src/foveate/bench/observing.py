"""What observing requests costs: throughput at 64 clients against ``--observe off``, servers taking turns, and a scrape under that load."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Final

from foveate.bench.client import Connection, chat_body
from foveate.bench.figures import Figure
from foveate.bench.latency import GREETING, mixed_body
from foveate.bench.server import HOST, Running, running
from foveate.observe.labels import Metric
from foveate.observe.metrics import Metrics, Reading
from foveate.observe.table import METRICS

CLIENTS: Final = 64
REQUESTS: Final = 512
"""Of a server's turn, all clients together."""
FLAGS: Final = ("--engine-threads", "1", "--media-workers", "1")
OFF, ON, TRACED = "off", "on", "on, with traces"
_COLLECTOR: Final = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *said):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
"""An OTLP receiver that reads and forgets, in a process of its own."""


def run(rounds: int) -> list[Figure]:
    """Text and pictures, half each, all of whose work after the first turn is in the caches: the gateway's part is as large as it gets."""
    rates: dict[str, list[float]] = {OFF: [], ON: [], TRACED: []}
    costs: dict[str, list[float]] = {OFF: [], ON: [], TRACED: []}
    scrapes: list[float] = []
    with contextlib.ExitStack() as scope:
        directory = Path(scope.enter_context(tempfile.TemporaryDirectory()))
        log = ("--log-requests", str(directory / "on.jsonl"))
        traces = ("--log-requests", str(directory / "traced.jsonl"), "--trace-otlp-endpoint")
        endpoint = scope.enter_context(_collector())
        servers = {
            OFF: scope.enter_context(running(*FLAGS, "--observe", "off")),
            ON: scope.enter_context(running(*FLAGS, *log)),
            TRACED: scope.enter_context(running(*FLAGS, *traces, endpoint)),
        }
        for server in servers.values():
            _turn(server)
        for round_ in range(rounds):
            # Each goes first, in the middle and last alike.
            order = list(servers)[round_ % 3 :] + list(servers)[: round_ % 3]
            for name in order:
                rate, cost, _ = _turn(servers[name])
                rates[name].append(rate)
                costs[name].append(cost)
            # A turn of its own: four scrapes a second would be counted as what observing costs.
            scrapes += _turn(servers[ON], scraped=True)[2]
    return [*_ratios(rates, costs), _scrape(scrapes)]


def _ratios(rates: dict[str, list[float]], costs: dict[str, list[float]]) -> list[Figure]:
    what = f"{REQUESTS} requests of {CLIENTS} clients, half with pictures, against --observe off in the same round"
    figures: list[Figure] = []
    for name, kind in ((ON, "observed"), (TRACED, "observed and traced")):
        rate = tuple(one / off for one, off in zip(rates[name], rates[OFF], strict=True))
        cost = tuple(one / off for one, off in zip(costs[name], costs[OFF], strict=True))
        figures += [
            Figure(f"Throughput, {kind} / not", what, rate, "x", 0.98, "at least"),
            Figure(f"Gateway's CPU a request, {kind} / not", what, cost, "x"),
        ]
    return figures


def _scrape(scrapes: list[float]) -> Figure:
    what = f"GET /metrics while {CLIENTS} clients ask, {len(scrapes)} scrapes"
    return Figure("A scrape of /metrics under load", what, tuple(scrapes), "ms", 20.0)


def _turn(server: Running, *, scraped: bool = False) -> tuple[float, float, list[float]]:
    """Return requests a second, the gateway's CPU seconds a request, and the milliseconds of each scrape meanwhile."""
    bodies = [mixed_body(server, number)[1] for number in range(40)]
    bodies += [chat_body(GREETING, model=server.model)] * 8
    scrapes: list[float] = []
    ended = Event()

    def client(number: int) -> int:
        with Connection(HOST, server.port) as connection:
            answered = [connection.ask(bodies[(number + place) % len(bodies)]) for place in range(REQUESTS // CLIENTS)]
        bad = [one.status for one in answered if one.status != 200]
        if bad:
            raise AssertionError(f"a request was answered with {bad[0]}")
        return len(answered)

    def scrape() -> None:
        while not ended.wait(0.25):
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://{HOST}:{server.port}/metrics", timeout=30) as reply:
                reply.read()
            scrapes.append((time.perf_counter() - began) * 1e3)

    before = server.cpu_seconds()["gateway"]
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        looking = pool.submit(scrape) if scraped else None
        began = time.perf_counter()
        answered = sum(pool.map(client, range(CLIENTS)))
        seconds = time.perf_counter() - began
        ended.set()
        if looking is not None:
            looking.result()
    return answered / seconds, (server.cpu_seconds()["gateway"] - before) / answered, scrapes


@contextlib.contextmanager
def _collector() -> Iterator[str]:
    """Run the receiver; return its URL."""
    with subprocess.Popen([sys.executable, "-c", _COLLECTOR], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://{HOST}:{int(process.stdout.readline())}/v1/traces"
        finally:
            process.kill()


def exposition(rounds: int) -> list[Figure]:
    """What rendering the metrics takes by itself, with every series that any label allows: CPU time, so that load does not show."""
    metrics = every_series()
    taken: list[float] = []
    for _ in range(rounds * 3):
        began = time.thread_time()
        data, _ = metrics.exposition()
        taken.append((time.thread_time() - began) * 1e3)
    lines = data.count(b"\n")
    return [
        Figure(
            "Rendering all of /metrics, CPU time",
            f"every series that any label allows, {lines} lines",
            tuple(taken),
            "ms",
        )
    ]


def every_series() -> Metrics:
    """Return metrics with every series that any label allows, one observation each."""
    metrics = Metrics()
    for metric in METRICS:
        _fill(metrics, metric)
    return metrics


def _fill(metrics: Metrics, metric: Metric) -> None:
    """Begin every series that a metric may have."""
    series: list[tuple[str, ...]] = [()]
    for label in metric.labels:
        series = [(*before, value) for before in series for value in label.values or ("a",)]
    if metric.read:
        reading: Reading = dict.fromkeys(series, 1.0) if metric.labels else 1.0
        metrics.bind(metric.name, lambda: reading)
        return
    for labels in series:
        if metric.kind == "histogram":
            metrics.observe(metric.name, *labels, value=0.1)
        elif metric.kind == "counter":
            metrics.count(metric.name, *labels)
        else:
            metrics.move(metric.name, *labels, by=1)
