"""The fetcher against real sockets on 127.0.0.1: where it connects, what it sends, and what it makes of every kind of
origin.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from blake3 import blake3

from foveate.core.clock import now
from foveate.core.errors import (
    FetchFailed,
    FetchRejected,
    FetchTimeout,
    FoveateError,
    MediaTooLarge,
    QueueFull,
    UrlInvalid,
    UrlRefused,
)
from foveate.media.addresses import IpAddress
from foveate.media.fetch import Fetched, Fetcher, FetchLimits
from foveate.media.policy import UrlPolicy

BODY = bytes(range(256)) * 1000
BOMB = Path("tests/data/cases/case026_64MiB_zeros_content_encoding.gz").read_bytes()
Answer = Callable[["Site", str, asyncio.StreamWriter], Awaitable[None]]


class Site:
    """An origin: records every request head, answers with what its ``answer`` writes, then closes unless that says
    otherwise.
    """

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer, self.tls = answer, tls
        self.heads: list[str] = []
        self.connections = 0
        self.keep_open = False
        self.asked = asyncio.Event()
        self.server_names: list[str | None] = []

    async def __aenter__(self) -> Site:
        if self.tls is not None:
            self.tls.sni_callback = lambda _socket, name, _context: self.server_names.append(name)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def url(self, target: str = "/a.png", host: str = "127.0.0.1") -> str:
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{target}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head.decode("latin-1"))
                self.asked.set()
                await self.answer(self, self.heads[-1].split()[1], writer)
                await writer.drain()
                if not self.keep_open:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as some tests want
        finally:
            writer.close()


def answering(body: bytes = BODY, status: str = "200 OK", headers: str = "", length: str | None = "") -> Answer:
    """Answer everything the same way. ``length`` None: no Content-Length."""

    async def answer(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        announced = "" if length is None else f"Content-Length: {length or len(body)}\r\n"
        writer.write(f"HTTP/1.1 {status}\r\n{announced}{headers}\r\n".encode() + body)

    return answer


def redirecting(*locations: str) -> Answer:
    """Answer the n-th request with a redirect to the n-th location, then with the body."""

    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        step = len(site.heads) - 1
        if step < len(locations):
            location = locations[step].replace("PORT", str(site.port))
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        else:
            await answering()(site, target, writer)

    return answer


class Buffer:
    """A sink with a cap, as the arena's is."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.bytes_max, self.data = bytes_max, bytearray()
        self.hints: list[int | None] = []
        self.resets = 0
        self.written = asyncio.Event()

    def open(self, size_hint: int | None) -> None:
        self.hints.append(size_hint)
        if size_hint is not None and size_hint > self.bytes_max:
            raise MediaTooLarge(limit=self.bytes_max, actual=size_hint)

    def write(self, chunk: bytes) -> None:
        if len(self.data) + len(chunk) > self.bytes_max:
            raise MediaTooLarge(limit=self.bytes_max)
        self.data += chunk
        self.written.set()

    def reset(self) -> None:
        self.resets += 1
        self.data.clear()


class Names:
    """A resolver with an answer a lookup; the last one stays."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): list(lists) for name, lists in answers.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[IpAddress]:
        self.asked.append(host)
        if host not in self.answers:
            raise OSError("unknown name")
        lists = self.answers[host]
        return [ip_address(text) for text in (lists.pop(0) if len(lists) > 1 else lists[0])]

    async def aclose(self) -> None:
        pass


class Bound:
    """A fetcher with the policy that a test calls it with."""

    def __init__(self, fetcher: Fetcher, policy: UrlPolicy, redirects_max: int) -> None:
        self.fetcher, self.policy, self.redirects_max = fetcher, policy, redirects_max

    async def fetch(self, url: str, sink: Buffer, **options: object) -> Fetched:
        return await self.fetcher.fetch(
            url,
            sink,
            policy=self.policy,
            redirects_max=self.redirects_max,
            **options,  # type: ignore[arg-type]
        )


@asynccontextmanager
async def fetcher_for(
    *sites: Site,
    names: Names | None = None,
    limits: FetchLimits | None = None,
    tls: ssl.SSLContext | None = None,
    redirects_max: int = 5,
    **policy: object,
) -> AsyncIterator[Bound]:
    settings = {
        "http_allowed": True,
        "private_networks": ["127.0.0.0/8"],
        "ports": [site.port for site in sites],
        **policy,
    }
    fetcher = Fetcher(
        user_agent="foveate-test/1.0 (+https://example.org)",
        limits=limits or FetchLimits(total_seconds_max=20, read_seconds_max=5),
        resolver=names,
        # A context without authorities: reading the system's store for every test would take longer than the tests.
        tls=tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )
    try:
        yield Bound(fetcher, UrlPolicy.of(**settings), redirects_max)  # type: ignore[arg-type]
    finally:
        await fetcher.aclose()


async def get(site: Site, target: str = "/a.png", *, sink: Buffer | None = None, **options: object) -> Fetched:
    async with fetcher_for(site, **options) as fetcher:  # type: ignore[arg-type]
        return await fetcher.fetch(site.url(target), sink or Buffer(), deadline=now() + 20)


async def refused(site: Site, error: type[FoveateError], target: str = "/a.png", **options: object) -> FoveateError:
    with pytest.raises(error) as caught:
        await get(site, target, **options)  # type: ignore[arg-type]
    return caught.value


# --------------------------------------------------------------------------------------------------------------- plain
# fetches


async def test_streams_the_body_into_the_sink_and_hashes_it() -> None:
    async with Site(answering()) as site:
        sink = Buffer()
        fetched = await get(site, sink=sink)
    assert bytes(sink.data) == BODY
    assert fetched == Fetched(blake3(BODY).hexdigest(), len(BODY), "127.0.0.1", 0, fetched.seconds)
    assert 0 < fetched.seconds < 20
    assert sink.hints == [len(BODY)]
    assert len(site.heads) == 1


async def test_sends_the_target_byte_for_byte_and_says_who_it_is() -> None:
    target = "/a%27b.jpg?X-Sig=a%2Fb%2Bc%3D&e=%e4%7E'%2e%2E/.."
    async with Site(answering()) as site:
        await get(site, target)
    lines = site.heads[0].split("\r\n")
    assert lines[0] == f"GET {target} HTTP/1.1"
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    assert headers["Host"] == f"127.0.0.1:{site.port}"
    assert headers["User-Agent"].startswith("foveate-test/")
    assert headers["Accept-Encoding"] == "identity"
    assert "Cookie" not in headers


async def test_takes_a_body_without_length() -> None:
    async with Site(answering(length=None)) as site:
        sink = Buffer()
        assert (await get(site, sink=sink)).size == len(BODY)
    assert sink.hints == [None]


async def test_ignores_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Site(answering()) as site:
        assert (await get(site)).size == len(BODY)


async def test_reuses_a_connection_to_the_same_checked_address_only() -> None:
    names = Names(img_test=[["127.0.0.1"]], other_test=[["127.0.0.1"], ["127.0.0.2"]])
    async with Site(answering()) as site:
        site.keep_open = True
        async with fetcher_for(site, names=names) as fetcher:
            for _ in range(3):
                await fetcher.fetch(site.url(host="img.test"), Buffer(), deadline=now() + 9)
            assert site.connections == 1
            await fetcher.fetch(site.url(host="other.test"), Buffer(), deadline=now() + 9)
            # The name now has another address, where nobody listens: the open connection to the first must not be
            # used for it.
            with pytest.raises(FetchFailed):
                await fetcher.fetch(site.url(host="other.test"), Buffer(), deadline=now() + 9)


# -------------------------------------------------------------------------------------------------------- where it may
# connect


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "[::1]", "2130706433"])
async def test_connects_nowhere_when_the_address_is_refused(host: str) -> None:
    async with Site(answering()) as site, fetcher_for(site, private_networks=[]) as fetcher:
        with pytest.raises((UrlRefused, UrlInvalid)) as caught:
            await fetcher.fetch(site.url(host=host), Buffer(), deadline=now() + 9, param="messages[0]", part=2)
        assert (caught.value.param, caught.value.part) == ("messages[0]", 2)
    assert site.connections == 0


async def test_any_refused_answer_refuses_the_name() -> None:
    names = Names(evil_test=[["93.184.216.34", "127.0.0.1"]])
    async with Site(answering()) as site, fetcher_for(site, names=names, private_networks=[]) as fetcher:
        with pytest.raises(UrlRefused) as caught:
            await fetcher.fetch(site.url(host="evil.test"), Buffer(), deadline=now() + 9)
    assert "loopback" in caught.value.public
    assert "127.0.0.1" not in caught.value.public
    assert site.connections == 0


async def test_resolves_once_and_connects_to_the_checked_address() -> None:
    names = Names(rebind_test=[["127.0.0.1"], ["10.0.0.1"]])
    async with Site(answering()) as site, fetcher_for(site, names=names) as fetcher:
        fetched = await fetcher.fetch(site.url(host="Rebind.test."), Buffer(), deadline=now() + 9)
        assert names.asked == ["rebind.test"]
        assert fetched.final_host == "rebind.test"
        assert f"Host: rebind.test:{site.port}\r\n" in site.heads[0]
        with pytest.raises(UrlRefused):
            await fetcher.fetch(site.url(host="rebind.test"), Buffer(), deadline=now() + 9)
    assert len(site.heads) == 1


async def test_tries_the_next_checked_address_when_one_does_not_answer() -> None:
    names = Names(two_test=[["127.0.0.9", "127.0.0.1"]])
    async with Site(answering()) as site, fetcher_for(site, names=names) as fetcher:
        assert (await fetcher.fetch(site.url(host="two.test"), Buffer(), deadline=now() + 9)).size == len(BODY)


async def test_the_system_resolver_is_judged_too() -> None:
    async with Site(answering()) as site, fetcher_for(site) as fetcher:
        assert (await fetcher.fetch(site.url(host="localhost"), Buffer(), deadline=now() + 9)).size == len(BODY)


async def test_an_unknown_name_is_a_failed_fetch() -> None:
    async with Site(answering()) as site, fetcher_for(site, names=Names()) as fetcher:
        with pytest.raises(FetchFailed) as caught:
            await fetcher.fetch(site.url(host="gone.test"), Buffer(), deadline=now() + 9)
    assert "resolved" in caught.value.public


# ------------------------------------------------------------------------------------------------------------------
# redirects


@pytest.mark.parametrize(
    "location", ["/img/b.png", "b.png", "//127.0.0.1:PORT/b.png", "http://127.0.0.1:PORT/b%27?x=%2F#f"]
)
async def test_follows_ordinary_redirects(location: str) -> None:
    async with Site(redirecting(location)) as site:
        fetched = await get(site)
    assert (fetched.size, fetched.redirects) == (len(BODY), 1)
    assert len(site.heads) == 2


async def test_a_redirect_target_keeps_its_bytes() -> None:
    async with Site(redirecting("/b%27b?s=a%2Fb%2Bc")) as site:
        await get(site)
    assert site.heads[1].startswith("GET /b%27b?s=a%2Fb%2Bc HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "location",
    [
        "http://10.0.0.1:PORT/x",
        "http://[::ffff:10.0.0.1]:PORT/x",
        "//169.254.169.254:PORT/latest",
        "file:///etc/passwd",
        "http://127.0.0.1:22/",
        "http://2130706433:PORT/",
        "http://u@127.0.0.1:PORT/",
    ],
)
async def test_every_hop_passes_the_whole_policy(location: str) -> None:
    async with Site(redirecting("/one", "/two", location)) as site:
        with pytest.raises((UrlRefused, UrlInvalid)):
            await get(site)
    assert len(site.heads) == 3


async def test_redirects_end() -> None:
    async with Site(redirecting(*[f"/{step}" for step in range(20)])) as site:
        error = await refused(site, FetchRejected, redirects_max=4)
        assert "redirects" in error.public
        assert (error.limit_name, error.limit, error.actual) == ("max_redirects", 4, 5)
        assert len(site.heads) == 5
    async with Site(redirecting("/b", "/a.png", "/b")) as site:
        await refused(site, FetchRejected)
        assert len(site.heads) == 2


# ----------------------------------------------------------------------------------------------------------------- bad
# origins


@pytest.mark.parametrize(
    "status", ["404 Not Found", "403 Forbidden", "410 Gone", "400 Bad Request", "300 Multiple Choices"]
)
async def test_a_refusing_origin_is_asked_once_and_quoted(status: str) -> None:
    async with Site(answering(b"secret page", status)) as site:
        error = await refused(site, FetchRejected)
    assert status[:3] in error.public
    assert "secret" not in error.public
    assert len(site.heads) == 1
    assert ("User-Agent" in error.public) == status.startswith("403")


@pytest.mark.parametrize(("status", "times"), [("500 Oh", 2), ("503 Busy", 2), ("429 Slow down", 1), ("408 Late", 1)])
async def test_a_failing_origin_is_tried_again_once_when_that_can_help(status: str, times: int) -> None:
    async with Site(answering(b"x", status)) as site:
        error = await refused(site, FetchFailed)
    assert status[:3] in error.public
    assert len(site.heads) == times


async def test_a_broken_transfer_starts_again() -> None:
    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        half = answering(BODY[: len(BODY) // 2], length=str(len(BODY)))
        await (half if len(site.heads) == 1 else answering())(site, target, writer)

    async with Site(answer) as site:
        sink = Buffer()
        assert (await get(site, sink=sink)).digest == blake3(BODY).hexdigest()
    assert bytes(sink.data) == BODY
    assert sink.resets == 1


async def test_an_origin_that_always_breaks_is_asked_twice() -> None:
    async with Site(answering(b"", "200 OK", length="500")) as site:
        await refused(site, FetchFailed)
    assert len(site.heads) == 2


async def test_nobody_listening() -> None:
    async with Site(answering()) as site:
        port = site.port
    async with fetcher_for(ports=[port]) as fetcher:
        with pytest.raises(FetchFailed):
            await fetcher.fetch(f"http://127.0.0.1:{port}/x?SECRET", Buffer(), deadline=now() + 9)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\nxx",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n",
        b"\0" * 99,
    ],
)
async def test_what_is_not_http_is_a_failed_fetch(reply: bytes) -> None:
    async def answer(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)

    async with Site(answer) as site:
        await refused(site, FetchFailed)


async def test_an_empty_body_is_refused() -> None:
    async with Site(answering(b"", length="0")) as site:
        assert "empty" in (await refused(site, FetchRejected)).public


async def test_an_announced_size_beyond_the_cap_is_refused_before_the_body() -> None:
    async with Site(answering(b"", length="99999999999")) as site:
        await refused(site, MediaTooLarge)
    assert len(site.heads) == 1


async def test_an_endless_body_stops_at_the_cap() -> None:
    async def answer(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            await writer.drain()

    async with Site(answer) as site:
        sink = Buffer(300_000)
        await refused(site, MediaTooLarge, sink=sink)
    assert len(sink.data) <= 300_000
    assert len(site.heads) == 1


async def test_bytes_behind_the_announced_length_are_never_taken() -> None:
    async with Site(answering(BODY, length="10")) as site:
        sink = Buffer()
        # Whether the client notices the surplus depends on how the packets fall; it may call the answer improper.
        with contextlib.suppress(FetchFailed):
            assert (await get(site, sink=sink)).size == 10
    assert bytes(sink.data) in (b"", BODY[:10])


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "gzip, gzip", "br", "zstd", "deflate"])
async def test_compressed_transfer_is_refused_not_expanded(encoding: str) -> None:
    async with Site(answering(BOMB, headers=f"Content-Type: image/png\r\nContent-Encoding: {encoding}\r\n")) as site:
        sink = Buffer()
        assert "compressed" in (await refused(site, FetchRejected, sink=sink)).public
    assert not sink.data


async def test_a_gzip_file_without_the_header_is_just_bytes() -> None:
    data = gzip.compress(b"x" * 100)
    async with Site(answering(data, headers="Content-Encoding: identity\r\n")) as site:
        sink = Buffer()
        await get(site, sink=sink)
    assert bytes(sink.data) == data


# --------------------------------------------------------------------------------------------------------------- time,
# places, logs


async def silent(_site: Site, _target: str, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def dripping(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def stalling(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    await writer.drain()
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("answer", "limits", "doing"),
    [
        (silent, FetchLimits(read_seconds_max=0.2), "answer"),
        (silent, FetchLimits(total_seconds_max=0.3), "answer"),
        (stalling, FetchLimits(read_seconds_max=0.2), "receiving"),
        (dripping, FetchLimits(read_seconds_max=5, total_seconds_max=0.3), "receiving"),
    ],
)
async def test_every_kind_of_slowness_ends_once(answer: Answer, limits: FetchLimits, doing: str) -> None:
    async with Site(answer) as site:
        error = await refused(site, FetchTimeout, limits=limits)
    assert doing in error.public
    assert len(site.heads) == 1


async def test_a_deadline_in_the_past_connects_nowhere() -> None:
    async with Site(answering()) as site, fetcher_for(site) as fetcher:
        with pytest.raises(FetchTimeout):
            await fetcher.fetch(site.url(), Buffer(), deadline=now() - 1)
    assert site.connections == 0


async def test_transfers_are_bounded_altogether_and_a_host() -> None:
    running, peak = 0, {"all": 0}

    async def answer(site: Site, target: str, writer: asyncio.StreamWriter) -> None:
        nonlocal running
        running += 1
        peak["all"] = max(peak["all"], running)
        await asyncio.sleep(0.05)
        running -= 1
        await answering(b"x")(site, target, writer)

    names = Names(a_test=[["127.0.0.1"]], b_test=[["127.0.0.1"]], c_test=[["127.0.0.1"]])
    limits = FetchLimits(transfers_max=3, transfers_per_host_max=2)
    async with Site(answer) as site, fetcher_for(site, names=names, limits=limits) as fetcher:

        async def one(host: str) -> None:
            await fetcher.fetch(site.url(host=host), Buffer(), deadline=now() + 9)

        await asyncio.gather(*(one("a.test") for _ in range(5)))
        assert peak["all"] == 2
        peak["all"] = 0
        await asyncio.gather(*(one(host) for host in ("a.test", "b.test", "c.test") for _ in range(3)))
        assert peak["all"] == 3


async def test_too_many_waiting_is_told_at_once() -> None:
    limits = FetchLimits(transfers_max=1, waiting_max=1)
    async with Site(silent) as site, fetcher_for(site, limits=limits) as fetcher:
        tasks = [asyncio.ensure_future(fetcher.fetch(site.url(), Buffer(), deadline=now() + 9)) for _ in range(2)]
        await site.asked.wait()
        with pytest.raises(QueueFull):
            await fetcher.fetch(site.url(), Buffer(), deadline=now() + 9)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*tasks, return_exceptions=True)
        )
        assert fetcher.fetcher._gates.hosts == 0


async def test_cancelling_ends_the_transfer_at_the_origin() -> None:
    gone = asyncio.Event()

    async def answer(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nx")
        await writer.drain()
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        gone.set()

    async with Site(answer) as site, fetcher_for(site) as fetcher:
        sink = Buffer()
        task = asyncio.ensure_future(fetcher.fetch(site.url(), sink, deadline=now() + 9))
        await sink.written.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 5)


async def test_no_query_string_is_ever_logged_or_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Site(answering(b"x", "503 Busy")) as site:
        error = await refused(site, FetchFailed, "/x.jpg?X-Amz-Signature=SECRET")
    async with fetcher_for(site) as fetcher:
        with pytest.raises(FetchFailed) as caught:
            await fetcher.fetch(site.url("/x.jpg?X-Amz-Signature=SECRET"), Buffer(), deadline=now() + 9)
    for text in (caplog.text, error.public, error.detail, caught.value.public, caught.value.detail):
        assert "SECRET" not in text
    assert "trying once more" in caplog.text


# ----------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    key, both = folder / "key.pem", folder / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(both)]
    subprocess.run(
        [*command, "-days", "2", "-subj", "/CN=img.test", "-addext", "subjectAltName=DNS:img.test"],
        check=True,
        capture_output=True,
    )
    both.write_text(both.read_text() + key.read_text())
    return both


def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_tls_is_checked_against_the_name_not_the_address(certificate: Path) -> None:
    names = Names(img_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with (
        Site(answering(), server_tls(certificate)) as site,
        fetcher_for(site, names=names, tls=trusting) as fetcher,
    ):
        assert (await fetcher.fetch(site.url(host="img.test"), Buffer(), deadline=now() + 9)).size == len(BODY)
        assert site.server_names == ["img.test"]
        with pytest.raises(FetchFailed) as caught:
            await fetcher.fetch(site.url(host="other.test"), Buffer(), deadline=now() + 9)
        assert "TLS" in caught.value.public
    assert len(site.heads) == 1


async def test_an_untrusted_certificate_is_refused(certificate: Path) -> None:
    names = Names(img_test=[["127.0.0.1"]])
    async with Site(answering(), server_tls(certificate)) as site, fetcher_for(site, names=names) as fetcher:
        with pytest.raises(FetchFailed):
            await fetcher.fetch(site.url(host="img.test"), Buffer(), deadline=now() + 9)
    assert not site.heads


async def test_https_never_falls_back_to_http(certificate: Path) -> None:
    names = Names(img_test=[["127.0.0.1"]])
    trusting = ssl.create_default_context(cafile=str(certificate))
    site = Site(redirecting("http://img.test:PORT/x"), server_tls(certificate))
    async with site, fetcher_for(names=names, tls=trusting, ports=range(1024, 65536)) as fetcher:
        with pytest.raises(UrlRefused) as caught:
            await fetcher.fetch(site.url(host="img.test"), Buffer(), deadline=now() + 9)
    assert "downgrade" in caught.value.public
