"""Fetch media that a client named by URL.

Covers: one lookup a hop, every address of the answer judged by the policy, the connection made to a judged address
and to nothing else (:mod:`foveate.media.transport`); every redirect hop judged like the first; time limits on each part
and on the whole; transfers bounded altogether and a host; hosts that lately did not answer refused at once
(:mod:`foveate.media.dead_hosts`); bodies that were kept before and still hold (:mod:`foveate.media.shelf`); one retry after a broken
connection or a 5xx, none after anything else; local files, where a root is configured. Does not cover: the size cap (the sink's), for
how long bodies may be kept, and what the bytes are (:mod:`foveate.media.probe`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from foveate.caches.media import MediaCache
from foveate.core.clock import now
from foveate.core.errors import FetchFailed, FetchRejected, FetchTimeout, TooManyRedirects
from foveate.media.addresses import IpAddress
from foveate.media.dead_hosts import DeadHosts
from foveate.media.files import LocalFiles
from foveate.media.gates import Gates
from foveate.media.policy import UrlPolicy
from foveate.media.proxy import Proxy
from foveate.media.receive import Body, Pour, check_status, receive
from foveate.media.resolve import Resolver, SystemResolver
from foveate.media.shelf import Found, Offer, Shelf, Visit
from foveate.media.sink import Sink
from foveate.media.transport import Broken, Progress, Transport, TransportLimits, timed_out
from foveate.media.url import MediaUrl

log = logging.getLogger(__name__)

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
RETRY_PAUSE_SECONDS: Final = 0.2
ADDRESSES_TRIED_MAX: Final = 3
NOTHING_KEPT: Final = Shelf(MediaCache(0, lambda slot: None))
"""The shelf of those who keep nothing."""

_Body = tuple[str, Found | None, Offer | None]
"""A body's digest, and what :class:`Fetched` says of where it is."""


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of every transfer, seconds and numbers. ``total_seconds_max`` counts from the call of
    :meth:`Fetcher.fetch` over all hops, waits for a place and the retry included; ``dns_seconds_max`` counts a hop,
    ``connect_seconds_max`` an address tried, ``first_byte_seconds_max`` from the connection to the end of the answer's
    headers, ``read_seconds_max`` a silence in the body. After ``dead_host_failures`` in a row a host is left alone for
    ``dead_host_seconds`` (0 failures: never).
    """

    total_seconds_max: float = 30.0
    dns_seconds_max: float = 5.0
    connect_seconds_max: float = 5.0
    first_byte_seconds_max: float = 10.0
    read_seconds_max: float = 10.0
    transfers_max: int = 64
    transfers_per_host_max: int = 16
    transfers_per_tenant_max: int = 48
    waiting_max: int = 4096
    dead_host_failures: int = 5
    dead_host_seconds: float = 10.0


class Fetched(msgspec.Struct, frozen=True):
    """What came: ``digest`` is the hexadecimal BLAKE3 hash of the bytes; they came after ``redirects`` redirects.

    ``found`` is set where they were kept before, and are not in the sink; its lease is the caller's. ``offer`` says on which terms what
    is in the sink may be kept.
    """

    digest: str
    redirects: int
    found: Found | None = None
    offer: Offer | None = None


@dataclass(slots=True)
class _Walk:
    """One call of :meth:`Fetcher.fetch` on its way from hop to hop."""

    sink: Sink
    policy: UrlPolicy
    redirects_max: int
    tenant: str
    shelf: Shelf
    progress: Progress
    asked_in_vain: bool = False
    """Whether a conditional request was answered about something else: once is enough."""
    addresses: list[IpAddress] | None = None
    """Where this hop goes: looked up and judged once, for its retry too."""


class Fetcher:
    """Fetches untrusted URLs into sinks. Made and used on one event loop; :meth:`aclose` ends its connections.

    With a ``proxy`` every web URL goes through it, and names are judged as names only.
    """

    def __init__(
        self,
        *,
        user_agent: str,
        limits: FetchLimits | None = None,
        resolver: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        self._limits = limits = limits or FetchLimits()
        self._resolver = resolver or SystemResolver(threads=limits.transfers_max)
        self._proxied = proxy is not None
        self._transport = Transport(
            TransportLimits(
                connect_seconds_max=limits.connect_seconds_max,
                first_byte_seconds_max=limits.first_byte_seconds_max,
            ),
            user_agent=user_agent,
            tls=tls,
            proxy=proxy,
            resolver=self._resolver,
        )
        self._gates = Gates(
            total_max=limits.transfers_max,
            per_host_max=limits.transfers_per_host_max,
            per_tenant_max=limits.transfers_per_tenant_max,
            waiting_max=limits.waiting_max,
        )
        self._dead = DeadHosts(failures_max=limits.dead_host_failures, seconds=limits.dead_host_seconds)
        self._files = LocalFiles()

    async def fetch(
        self,
        url: MediaUrl,
        sink: Sink,
        *,
        policy: UrlPolicy,
        redirects_max: int,
        tenant: str,
        shelf: Shelf = NOTHING_KEPT,
        progress: Progress | None = None,
    ) -> Fetched:
        """Stream the body behind ``url``, which ``policy`` parsed, into ``sink``, or find it on the ``shelf``.

        ``policy`` judges every hop; it comes with the call because an operator may replace it while the server runs.
        The transfer takes one of the places of ``tenant``. What is found on the shelf is no transfer. ``progress``, which
        is written to, tells how far it came, also where it fails.

        Raises UrlInvalid, UrlRefused (at any hop), FetchRejected (the origin refuses: permanent), FetchFailed (5xx,
        408, 429, broken, not reachable, lately dead), FetchTimeout (with ``limit_name`` of the limit that ran out),
        QueueFull, and whatever the sink raises (MediaTooLarge).
        """
        walk = _Walk(sink, policy, redirects_max, tenant, shelf, progress or Progress())
        started, seconds = now(), self._limits.total_seconds_max
        try:
            async with asyncio.timeout(seconds):
                digest, found, offer = await self._follow(url, walk)
        except TimeoutError:
            raise _too_slow(walk.progress, started, seconds) from None
        return Fetched(digest, walk.progress.redirects, found, offer)

    async def aclose(self) -> None:
        """Close every connection and give the threads back. No transfer may be running."""
        await self._transport.aclose()
        await self._files.aclose()
        await self._resolver.aclose()

    async def _follow(self, url: MediaUrl, walk: _Walk) -> _Body:
        if url.scheme == "file":
            return (await self._read_file(url, walk)).digest, None, None
        seen = {(url.scheme, url.authority, url.target)}
        while True:
            walk.progress.where = str(url)
            try:
                result = await self._hop(url, walk)
            except Broken as broken:
                if walk.progress.retries:
                    raise broken.error from None
                walk.progress.retries += 1
                log.info("media fetch broke, trying once more: %s", broken.error)
                walk.sink.reset()
                walk.progress.begin("recovering from a broken connection")
                if not broken.stale:
                    await asyncio.sleep(RETRY_PAUSE_SECONDS)
                continue
            if isinstance(result, tuple):
                return result
            if result is None:
                walk.asked_in_vain = True
                continue
            url, walk.addresses = walk.policy.follow(url, result), None
            place = (url.scheme, url.authority, url.target)
            if place in seen:
                raise TooManyRedirects(
                    "The media could not be fetched: its origin redirects in a circle.", detail=str(url)
                )
            if walk.progress.redirects >= walk.redirects_max:
                raise _redirects_too_often(url, walk)
            walk.progress.redirects += 1
            seen.add(place)

    async def _hop(self, url: MediaUrl, walk: _Walk) -> _Body | str | None:
        """One request, or none where what is kept is fresh. Returns the body's facts, the Location of a redirect, or None: ask again."""
        with walk.shelf.visit(url, walk.policy) as visit:
            if visit.fresh:
                walk.sink.check(visit.size)
                return _found(visit.use())
            progress = walk.progress
            self._dead.check(_key(url), now())  # before waiting in line for it
            progress.begin("waiting for other downloads to end")
            async with self._gates.place(url.host, walk.tenant):
                with self._watched(_key(url), progress):
                    return await self._ask(url, walk, visit)

    async def _ask(self, url: MediaUrl, walk: _Walk, visit: Visit) -> _Body | str | None:
        """One exchange with the origin."""
        progress = walk.progress
        progress.begin("resolving its host name")
        if walk.addresses is None:
            walk.addresses = await self._addresses(url, walk)
        condition = visit.ask(again=walk.asked_in_vain)
        async with self._transport.answer(url, walk.addresses, progress, condition) as response:
            answer = visit.answered(response)
            if answer == "unchanged":
                walk.sink.check(visit.size)
                return _found(visit.keep())
            if answer == "nonsense":
                return None
            if response.status in REDIRECTS and "Location" in response.headers:
                return response.headers["Location"]
            check_status(response, url, proxied=self._proxied)
            body = await receive(response, walk.sink, progress, read_seconds_max=self._limits.read_seconds_max)
            return body.digest, None, visit.offer(response, walk.addresses)

    @contextmanager
    def _watched(self, key: str, progress: Progress) -> Iterator[None]:
        """Learn from one exchange whether the host is alive. Raises FetchFailed when it is held dead."""
        since = now()
        self._dead.enter(key, since)
        progress.sign = "none"
        try:
            yield
        finally:
            self._dead.ended(key, progress.sign, since=since, now=now())

    async def _addresses(self, url: MediaUrl, walk: _Walk) -> list[IpAddress]:
        """Resolve once; refuse the URL when any of the answers is refused. None: a proxy resolves."""
        if self._proxied:
            walk.policy.check_proxied(url)
            return []
        if url.address is not None:
            addresses = [url.address]
        else:
            seconds = self._limits.dns_seconds_max
            try:
                async with asyncio.timeout(seconds):
                    addresses = await self._resolver.resolve(url.host, url.port, tenant=walk.tenant)
            except TimeoutError:
                raise timed_out("fetch.dns_seconds", seconds, "its host name was not resolved", walk.progress) from None
            except (OSError, UnicodeError) as error:
                public = "The media could not be fetched: its host name could not be resolved."
                raise FetchFailed(public, detail=f"{url.host}: {error}") from None
        if not addresses:
            raise FetchFailed("The media could not be fetched: its host name has no address.", detail=url.host)
        for address in addresses:
            walk.policy.check_address(url, address)
        return addresses[:ADDRESSES_TRIED_MAX]

    async def _read_file(self, url: MediaUrl, walk: _Walk) -> Body:
        walk.progress.where = str(url)
        walk.progress.begin("waiting for other downloads to end")
        async with self._gates.place(url.host, walk.tenant):
            walk.progress.begin("reading the file")
            async with self._files.open(walk.policy.file_root, url.target) as (size, pieces):
                pour = Pour(walk.sink)
                walk.sink.open(size)
                async for piece in pieces:
                    pour.write(piece)
        if pour.size == 0:
            raise FetchRejected("The media file is empty.", detail=str(url))
        return pour.body()


def _found(found: Found) -> _Body:
    return found.lease.entry.digest, found, None


def _key(url: MediaUrl) -> str:
    return f"{url.host}:{url.port}"


def _too_slow(progress: Progress, started: float, seconds: float) -> FetchTimeout:
    """Return the error for a transfer whose whole time is up."""
    name = "fetch.total_seconds"
    public = f"The media could not be fetched in time: time ran out while {progress.doing} ({name}: {seconds:g} s)."
    actual = round(now() - started, 3)
    return FetchTimeout(public, detail=progress.where, limit_name=name, limit=seconds, actual=actual)


def _redirects_too_often(url: MediaUrl, walk: _Walk) -> TooManyRedirects:
    return TooManyRedirects(
        detail=str(url),
        limit_name="max_redirects",
        limit=walk.redirects_max,
        actual=walk.progress.redirects + 1,
    )
