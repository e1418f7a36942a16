"""The servers and clients that the black-box tests share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.blackbox.origins import Origin, origin
from tests.blackbox.server import Server
from tests.otlp import Receiver, receiver

SMALL = ("--media-workers", "2", "--engine-threads", "1")
"""Two cores are enough for the tests, and often all there is."""


@pytest.fixture(scope="session")
def web() -> Iterator[Origin]:
    """A web server with pictures, which the shared server may fetch from."""
    with origin() as made:
        yield made


@pytest.fixture(scope="session")
def collector() -> Iterator[Receiver]:
    """Where the shared server exports its traces."""
    with receiver() as made:
        yield made


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, web: Origin, collector: Receiver) -> Iterator[Server]:
    """The server that most tests share; it may fetch from ``web``, and from no other port or private network."""
    shared = Server(
        tmp_path_factory.mktemp("server"),
        *SMALL,
        "--fetch-http-allowed",
        "--fetch-private-networks",
        "127.0.0.1/32",
        "--fetch-ports",
        f"80,443,{web.port}",
        "--fetch-read-seconds",
        "20",
        "--trace-otlp-endpoint",
        collector.url,
        "--slo-text-ttft-p95-ms",
        "60000",
    )
    try:
        yield shared
        shared.stop()
    finally:
        shared.kill_all()


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with nothing allowed beyond the defaults. Tests kill parts of it; its stop must be clean all the same.

    It is stopped as at a terminal, while a client keeps an idle connection open.
    """
    shared = Server(tmp_path_factory.mktemp("plain"), *SMALL)
    try:
        yield shared
        with shared.client() as idle:
            assert idle.get("/health").status_code == 200
            shared.stop(signal.SIGINT)
    finally:
        shared.kill_all()


TIGHT = {
    "engine-queue-depth-max": "1",
    "engine-batch-size-max": "1",
    "limits-multimodal-requests-max": "1",
    "max-images": "2",
    "max-image-pixels": "100000",
    "server-body-bytes-max": "1MiB",
    "fetch-private-networks": "127.0.0.1/32",
    "fetch-read-seconds": "0.5",
    "fetch-first-byte-seconds": "0.5",
    "fetch-dead-host-failures": "0",
    "max-fetch-seconds": "2",
    "max-item-bytes": "256KiB",
}


@pytest.fixture(scope="session")
def tight(tmp_path_factory: pytest.TempPathFactory, web: Origin) -> Iterator[Server]:
    """A server with small limits; it may fetch from ``web``."""
    limits = [text for name, value in TIGHT.items() for text in (f"--{name}", value)]
    flags = (*SMALL, "--fetch-http-allowed", "--fetch-ports", str(web.port), *limits)
    made = Server(tmp_path_factory.mktemp("tight"), *flags, forked=True)
    try:
        yield made
        made.stop()
    finally:
        made.kill_all()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start servers of the test's own, forked if nothing else is said; whatever is left of them afterwards is ended."""
    started: list[Server] = []

    def begin(*flags: str, **options: bool | str) -> Server:
        given: dict[str, Any] = {"forked": True, **options}
        started.append(Server(tmp_path / f"server{len(started)}", *SMALL, *flags, **given))
        return started[-1]

    yield begin
    for one in started:
        one.kill_all()


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def ai(server: Server) -> Iterator[openai.OpenAI]:
    """The official client, as its users make it."""
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def model(server: Server) -> str:
    return str(httpx.get(f"{server.base_url}/v1/models").json()["data"][0]["id"])


SHARED = {"server", "plain", "tight", "guarded"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that start servers the time which that takes on a busy machine, and let one process run all that share some."""
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))
        if SHARED & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("shared-servers"))
