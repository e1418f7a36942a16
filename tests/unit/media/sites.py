"""Origins on 127.0.0.1 that record what reaches them, sinks and names for them, and a fetcher that may ask them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

from foveate.core.errors import FoveateError, MediaTooLarge
from foveate.media.addresses import IpAddress
from foveate.media.fetch import Fetcher, FetchLimits
from foveate.media.policy import UrlPolicy
from foveate.media.proxy import Proxy
from foveate.media.resolve import Resolver
from foveate.media.transport import Progress

BODY = bytes(range(256)) * 1000
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


async def silent(_site: Site, _target: str, _writer: asyncio.StreamWriter) -> None:
    """Take the request and never answer."""
    await asyncio.sleep(30)


class Buffer:
    """A sink with a cap, as the arena's is."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.bytes_max, self.data, self.size = bytes_max, bytearray(), 0
        self.hints: list[int | None] = []
        self.resets = 0
        self.written = asyncio.Event()

    def check(self, size: int) -> None:
        if size > self.bytes_max:
            raise MediaTooLarge(limit=self.bytes_max, actual=size)

    def open(self, size_hint: int | None) -> None:
        self.hints.append(size_hint)
        self.check(size_hint or 0)

    def write(self, chunk: bytes) -> None:
        if len(self.data) + len(chunk) > self.bytes_max:
            raise MediaTooLarge(limit=self.bytes_max)
        self.data += chunk
        self.size += len(chunk)
        self.written.set()

    def reset(self) -> None:
        self.resets += 1
        self.data.clear()
        self.size = 0


class Names:
    """A resolver with an answer a lookup; the last one stays."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): list(lists) for name, lists in answers.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int, *, tenant: str = "") -> list[IpAddress]:
        self.asked.append(host)
        if host not in self.answers:
            raise OSError("unknown name")
        lists = self.answers[host]
        return [ip_address(text) for text in (lists.pop(0) if len(lists) > 1 else lists[0])]

    async def aclose(self) -> None:
        pass


class Spool(Buffer):
    """A sink that counts and keeps nothing."""

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > self.bytes_max:
            raise MediaTooLarge(limit=self.bytes_max)


@dataclass(frozen=True)
class Arrived:
    """What a fetch said of a body, and how many bytes its sink has."""

    digest: str
    size: int
    redirects: int


class Bound:
    """A fetcher with the policy that a test calls it with."""

    def __init__(self, fetcher: Fetcher, policy: UrlPolicy, redirects_max: int) -> None:
        self.fetcher, self.policy, self.redirects_max = fetcher, policy, redirects_max

    async def fetch(self, url: str, sink: Buffer, *, tenant: str = "t", progress: Progress | None = None) -> Arrived:
        found = await self.fetcher.fetch(
            self.policy.parse(url),
            sink,
            policy=self.policy,
            redirects_max=self.redirects_max,
            tenant=tenant,
            progress=progress,
        )
        return Arrived(found.digest, sink.size, found.redirects)


@asynccontextmanager
async def fetcher_for(
    *sites: Site,
    names: Resolver | None = None,
    limits: FetchLimits | None = None,
    tls: ssl.SSLContext | None = None,
    proxy: Proxy | None = None,
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
        proxy=proxy,
    )
    try:
        yield Bound(fetcher, UrlPolicy.of(**settings), redirects_max)  # type: ignore[arg-type]
    finally:
        await fetcher.aclose()


async def get(site: Site, target: str = "/a.png", *, sink: Buffer | None = None, **options: object) -> Arrived:
    async with fetcher_for(site, **options) as fetcher:  # type: ignore[arg-type]
        return await fetcher.fetch(site.url(target), sink or Buffer())


async def refused(site: Site, error: type[FoveateError], target: str = "/a.png", **options: object) -> FoveateError:
    with pytest.raises(error) as caught:
        await get(site, target, **options)  # type: ignore[arg-type]
    return caught.value


def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
