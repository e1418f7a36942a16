"""The servers of the field cases, besides those that all black-box tests share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest
from tests.blackbox.conftest import SMALL
from tests.blackbox.field_cases.dns import NameServer, name_server
from tests.blackbox.field_cases.listeners import Trap, trap
from tests.blackbox.field_cases.marks import _right as right
from tests.blackbox.origins import Origin, body, origin
from tests.blackbox.pictures import ask, encoded, one, url_of
from tests.blackbox.replies import content
from tests.blackbox.server import Server

__all__ = ["right"]

CHAT = "/v1/chat/completions"
HOSTS = ("allowed.example", "*.media.example", "faß.de", "cdn.example.")
SERVERS = ("guarded", "server", "plain", "tight", "tiered")
PICTURE = "/picture.png"


@pytest.fixture(scope="module")
def http(guarded: Server) -> Iterator[httpx.Client]:
    """A client of ``guarded``, for groups A and B; others have servers of their own."""
    with guarded.client() as client:
        yield client


@pytest.fixture(scope="session")
def names() -> Iterator[NameServer]:
    """The name server of ``guarded``."""
    with name_server() as made:
        yield made


@pytest.fixture(scope="session")
def media() -> Iterator[Origin]:
    """The one web server on a network that ``guarded`` may fetch from. It has a picture."""
    with origin("127.0.0.3") as made:
        made.pages[PICTURE] = body(encoded(one("red", "circle")))
        yield made


@pytest.fixture(scope="session")
def proxy() -> Iterator[Trap]:
    """What the environment of ``guarded`` names as its proxy."""
    with trap(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture(scope="session")
def forbidden(media: Origin) -> Iterator[Trap]:
    """Listens wherever a URL may lead that the policy forbids, on the port that ``guarded`` may fetch from."""
    with trap(*((host, media.port) for host in ("127.0.0.1", "127.0.0.2", "::1"))) as made:
        yield made


@pytest.fixture
def unreached(forbidden: Trap) -> Iterator[Trap]:
    """Assert that the test makes nobody connect to where it is forbidden."""
    before = forbidden.connections
    yield forbidden
    assert forbidden.connections == before, "the policy let a connection through"


@pytest.fixture(scope="session")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, media: Origin, names: NameServer, proxy: Trap
) -> Iterator[Server]:
    """A server that fetches http from one private address and a few hosts, and asks ``names`` for addresses.

    It also does what is off by default: counts a picture that comes again once, takes truncated ones, scales down wide ones.
    """
    through = f"http://127.0.0.1:{proxy.port}"
    made = Server(
        tmp_path_factory.mktemp("guarded"),
        *SMALL,
        "--fetch-http-allowed",
        "--fetch-private-networks",
        "127.0.0.3/32",
        "--fetch-hosts",
        ",".join(HOSTS),
        "--fetch-ports",
        f"80,443,{media.port}",
        "--fetch-dead-host-failures",
        "0",
        "--fetch-dns-servers",
        f"127.0.0.1:{names.port}",
        "--no-count-repeats",
        "--media-truncated-accepted",
        "--max-image-width",
        "2048",
        "--on-excess",
        "max_image_width=fit",
        forked=True,
        HTTP_PROXY=through,
        HTTPS_PROXY=through,
        ALL_PROXY=through,
        http_proxy=through,
        https_proxy=through,
    )
    try:
        yield made
        made.stop()
    finally:
        made.kill_all()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Opens when the test is over, so that no origin waits on."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture(autouse=True)
def _still_answers(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each case, each server that it was put to answers a good request rightly."""
    yield
    for name in SERVERS:
        if name in request.fixturenames:
            server: Server = request.getfixturevalue(name)
            with server.client() as client:
                assert content(client.post(CHAT, json=ask(url_of(one("red", "circle"))))) == "A red circle."
