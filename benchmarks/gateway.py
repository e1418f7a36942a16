"""What a gateway adds in front of one plain vLLM: Foveate's upstream engine beside the Rust gateway smg, and nothing at all.

.venv/bin/python benchmarks/gateway.py --smg PATH            # about 5 minutes; --rounds 2 --requests 20 for a short one
python -m venv DIR; DIR/bin/pip install --requirement requirements/bench.txt          # PATH is then DIR/bin/smg

Every request is sent all ways, one after the other, in turns; a way's added latency is the difference of its percentile over a round to the
direct way's. Requests a second are those of clients that ask without pause. docs/performance.md has the figures.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from foveate.bench.client import Connection, Timed, chat_body
from foveate.bench.figures import Figure, percentile
from foveate.bench.pictures import BLUE, RED, circle, data_url, encoded
from foveate.bench.server import HOST, Running, free_port, running, started
from foveate.bench.systems import MODEL, capped_model, plain_vllm

CLIENTS: Final = 8
ADDED_MS_MAX: Final = 2.0
TIMES_SMG_MAX: Final = 2.0
SHARES: Final = {"p50": 0.5, "p99": 0.99}
TOKENS: Final = 1
"""The first token is what is timed; more of them would only add vLLM's own variation."""


def main() -> None:
    """Run the rounds, print the table, and write the figures where that was asked for."""
    options = _options()
    with tempfile.TemporaryDirectory() as work, ExitStack() as scope:
        vllm = scope.enter_context(plain_vllm(capped_model(Path(work))))
        ports = {"direct": vllm.port}
        behind = f"http://{HOST}:{vllm.port}"
        ports["foveate"] = scope.enter_context(running("--engine", "upstream", "--upstream", behind)).port
        if options.smg:
            ports["smg"] = scope.enter_context(_smg(options.smg, behind)).port
        figures = []
        for kind, make in (("text", _texts()), ("small picture", _pictures())):
            figures += _measure(kind, make, ports, options.rounds, options.requests)
    _print(figures)
    if options.output:
        Path(options.output).write_bytes(msgspec.json.format(msgspec.json.encode(figures)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100, help="of each way in each round")
    parser.add_argument("--smg", default=shutil.which("smg"), help="smg's executable; left out where there is none")
    parser.add_argument("--output", metavar="FILE", help="also write the figures as JSON")
    return parser.parse_args()


@contextmanager
def _smg(executable: str, behind: str) -> Iterator[Running]:
    port = free_port()
    command = [executable, "launch", "--host", HOST, "--port", str(port), "--worker-urls", behind]
    command += ["--policy", "round_robin", "--prometheus-port", str(free_port()), "--log-level", "error"]
    with started(command, port, "/readiness") as server:
        yield server


def _texts() -> Callable[[], bytes]:
    numbers = itertools.count()
    return lambda: chat_body(f"Hello! This is note {next(numbers)}.", model=MODEL, tokens=TOKENS)


def _pictures() -> Callable[[], bytes]:
    """Small pictures, each new, so that nobody has it cached."""
    numbers = itertools.count()

    def make() -> bytes:
        number = next(numbers)
        picture = circle((RED, BLUE)[number % 2], shade=255 - number % 64)
        picture.putpixel((number // 64 % 224, 0), (number % 256, 0, 0))
        url = data_url(encoded(picture, quality=90))
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is in this image?"}]
        return chat_body(parts, model=MODEL, tokens=TOKENS)

    return make


def _measure(
    kind: str, make: Callable[[], bytes], ports: Mapping[str, int], rounds: int, requests: int
) -> list[Figure]:
    for port in ports.values():
        _rate(port, make, CLIENTS * 2)
    times: dict[str, list[list[float]]] = {way: [] for way in ports}
    rates: dict[str, list[float]] = {way: [] for way in ports}
    for round_ in range(rounds):
        for way, found in _one_by_one(make, ports, requests).items():
            times[way].append(found)
        order = list(ports)
        for place in range(len(order)):
            way = order[(place + round_) % len(order)]
            rates[way].append(_rate(ports[way], make, requests * 2))
    return _figures(kind, times, rates)


def _one_by_one(make: Callable[[], bytes], ports: Mapping[str, int], requests: int) -> dict[str, list[float]]:
    """Return the milliseconds to the first token of each way, the ways taking turns request by request."""
    found: dict[str, list[float]] = {way: [] for way in ports}
    with ExitStack() as scope:
        ways = [(way, scope.enter_context(Connection(HOST, port))) for way, port in ports.items()]
        for number in range(requests):
            for place in range(len(ways)):
                way, connection = ways[(place + number) % len(ways)]
                found[way].append(_checked(connection.ask(make()), way).token_ms)
    return found


def _rate(port: int, make: Callable[[], bytes], requests: int) -> float:
    """Return requests a second of :data:`CLIENTS` that each ask again as soon as they were answered."""
    bodies = [make() for _ in range(requests)]

    def client(number: int) -> None:
        with Connection(HOST, port) as connection:
            for body in bodies[number::CLIENTS]:
                _checked(connection.ask(body), str(port))

    started_at = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(client, range(CLIENTS)))
    return requests / (time.perf_counter() - started_at)


def _checked(answer: Timed, way: str) -> Timed:
    if answer.status != 200 or not answer.text:
        raise SystemExit(f"{way}: status {answer.status}, text {answer.text!r}")
    return answer


def _figures(kind: str, times: Mapping[str, list[list[float]]], rates: Mapping[str, list[float]]) -> list[Figure]:
    figures = []
    what = f"milliseconds to the first token, less the direct way's, {len(times['direct'][0])} requests in each round"
    added: dict[tuple[str, str], list[float]] = {}
    for way in (way for way in times if way != "direct"):
        for name, share in SHARES.items():
            pairs = zip(times[way], times["direct"], strict=True)
            added[way, name] = [percentile(ours, share) - percentile(direct, share) for ours, direct in pairs]
            goal = ADDED_MS_MAX if (way, name) == ("foveate", "p50") else None
            figures.append(Figure(f"{kind}: {way} adds, {name}", what, tuple(added[way, name]), "ms", goal))
    if "smg" in times:
        ratio = statistics.median(added["foveate", "p50"]) / max(statistics.median(added["smg", "p50"]), 0.01)
        words = "median over the rounds of what Foveate adds / of what smg adds"
        figures.append(Figure(f"{kind}: Foveate adds / smg adds, p50", words, (ratio,), "x", TIMES_SMG_MAX))
    for way, found in rates.items():
        asked = f"{CLIENTS} clients without pause, {TOKENS} token each"
        figures.append(Figure(f"{kind}: requests a second, {way}", asked, tuple(found), "/s"))
    direct = [percentile(found, 0.5) for found in times["direct"]]
    figures.append(Figure(f"{kind}: direct, p50", "milliseconds to the first token", tuple(direct), "ms"))
    return figures


def _print(figures: list[Figure]) -> None:
    print("| figure | median | spread | goal | |\n|---|---|---|---|---|")
    for figure in figures:
        print(f"| {' | '.join(figure.row()[:5])} |")
    print(
        f"\n{os.cpu_count()} cores; load average (1, 5, 15 min): {', '.join(f'{value:.1f}' for value in os.getloadavg())}"
    )


if __name__ == "__main__":
    main()
