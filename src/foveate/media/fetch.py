"""Fetch media that a client named by URL.

Covers: one lookup a hop, every address of the answer judged by the policy, the connection made to a judged address
and to nothing else (:mod:`foveate.media.transport`); every redirect hop judged like the first; time limits on
connecting, on each read and on the whole; transfers bounded altogether and a host; the size cap while streaming (the
sink's); one retry after a broken connection or a 5xx, none after anything else. Does not cover: caching, and what the
bytes are (:mod:`foveate.media.probe`).
"""

from __future__ import annotations

import asyncio
import http
import logging
import ssl
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import msgspec
from blake3 import blake3

from foveate.core.clock import now
from foveate.core.errors import FetchFailed, FetchRejected, FoveateError
from foveate.media.addresses import IpAddress
from foveate.media.gates import Gates
from foveate.media.policy import MediaUrl, UrlPolicy
from foveate.media.resolve import Resolver, SystemResolver
from foveate.media.sink import Sink
from foveate.media.transport import Broken, Progress, Transport, too_slow

log = logging.getLogger(__name__)

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
RETRY_PAUSE_SECONDS: Final = 0.2
ADDRESSES_TRIED_MAX: Final = 3
_PHRASES: Final = {status.value: f"{status.value} {status.phrase}" for status in http.HTTPStatus}


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of every transfer. ``total_seconds_max`` counts from the call of :meth:`Fetcher.fetch`, its wait for a
    place included.
    """

    total_seconds_max: float = 30.0
    connect_seconds_max: float = 5.0
    read_seconds_max: float = 10.0
    transfers_max: int = 64
    transfers_per_host_max: int = 16
    waiting_max: int = 4096


class Fetched(msgspec.Struct, frozen=True):
    """What came: ``digest`` is the hexadecimal BLAKE3 hash of the ``size`` bytes, ``final_host`` the host after
    ``redirects`` redirects, ``seconds`` how long all of it took, its wait for a place included.
    """

    digest: str
    size: int
    final_host: str
    redirects: int
    seconds: float


class _Body(msgspec.Struct, frozen=True):
    """What a body came to."""

    digest: str
    size: int


@dataclass(slots=True)
class _Walk:
    """One call of :meth:`Fetcher.fetch` on its way from hop to hop."""

    sink: Sink
    policy: UrlPolicy
    redirects_max: int
    redirects: int = 0
    progress: Progress = field(default_factory=Progress)


class Fetcher:
    """Fetches untrusted URLs into sinks. Made and used on one event loop; :meth:`aclose` ends its connections."""

    def __init__(
        self,
        *,
        user_agent: str,
        limits: FetchLimits | None = None,
        resolver: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._limits = limits or FetchLimits()
        self._resolver = resolver or SystemResolver()
        self._transport = Transport(
            user_agent=user_agent,
            connect_seconds_max=self._limits.connect_seconds_max,
            read_seconds_max=self._limits.read_seconds_max,
            tls=tls,
        )
        self._gates = Gates(
            total_max=self._limits.transfers_max,
            per_host_max=self._limits.transfers_per_host_max,
            waiting_max=self._limits.waiting_max,
        )

    async def fetch(
        self,
        url: MediaUrl | str,
        sink: Sink,
        *,
        policy: UrlPolicy,
        redirects_max: int,
        deadline: float,
        param: str | None = None,
        part: int | None = None,
    ) -> Fetched:
        """Stream the body behind ``url`` into ``sink`` by ``deadline`` (monotonic seconds).

        ``policy`` judges every hop; it comes with the call because an operator may replace it while the server runs.

        Raises UrlInvalid, UrlRefused (at any hop), FetchRejected (the origin refuses: permanent), FetchFailed (5xx,
        408, 429, broken, not reachable), FetchTimeout, QueueFull, and whatever the sink raises (MediaTooLarge).
        ``param`` and ``part`` go into the error.
        """
        walk = _Walk(sink, policy, redirects_max)
        started = now()
        try:
            try:
                async with asyncio.timeout(min(deadline - started, self._limits.total_seconds_max)):
                    parsed = policy.parse(url) if isinstance(url, str) else url
                    last, body = await self._follow(parsed, walk)
            except TimeoutError:
                raise too_slow(walk.progress) from None
        except FoveateError as error:
            error.param = error.param or param
            error.part = part if error.part is None else error.part
            raise
        return Fetched(body.digest, body.size, last.host, walk.redirects, now() - started)

    async def aclose(self) -> None:
        """Close every connection and give the resolver's threads back. No transfer may be running."""
        await self._transport.aclose()
        await self._resolver.aclose()

    async def _follow(self, url: MediaUrl, walk: _Walk) -> tuple[MediaUrl, _Body]:
        retried = False
        seen = {(url.scheme, url.authority, url.target)}
        while True:
            walk.progress.where = str(url)
            try:
                result = await self._hop(url, walk)
            except Broken as broken:
                if retried:
                    raise broken.error from None
                retried = True
                log.info("media fetch broke, trying once more: %s", broken.error)
                walk.sink.reset()
                walk.progress.doing = "recovering from a broken connection"
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
                continue
            if isinstance(result, _Body):
                return url, result
            url = walk.policy.follow(url, result)
            place = (url.scheme, url.authority, url.target)
            if place in seen or walk.redirects >= walk.redirects_max:
                raise _redirects_too_often(url, walk)
            walk.redirects += 1
            seen.add(place)

    async def _hop(self, url: MediaUrl, walk: _Walk) -> _Body | str:
        """One request. Returns the body's facts, or the Location of a redirect."""
        progress = walk.progress
        progress.doing = "waiting for other downloads to end"
        async with self._gates.place(url.host):
            progress.doing = "resolving its host name"
            addresses = await self._addresses(url, walk.policy)
            progress.doing = "waiting for its origin to answer"
            async with self._transport.answer(url, addresses, progress) as response:
                if response.status in REDIRECTS and "Location" in response.headers:
                    return response.headers["Location"]
                _check_status(response, url)
                progress.doing = "receiving it"
                return await _stream(response, walk.sink, url)

    async def _addresses(self, url: MediaUrl, policy: UrlPolicy) -> list[IpAddress]:
        """Resolve once; refuse the URL when any of the answers is refused."""
        if url.address is not None:
            addresses = [url.address]
        else:
            try:
                addresses = await self._resolver.resolve(url.host, url.port)
            except (OSError, UnicodeError) as error:
                public = "The media could not be fetched: its host name could not be resolved."
                raise FetchFailed(public, detail=f"{url.host}: {error}") from None
        if not addresses:
            raise FetchFailed("The media could not be fetched: its host name has no address.", detail=url.host)
        for address in addresses:
            policy.check_address(url, address)
        return addresses[:ADDRESSES_TRIED_MAX]


def _redirects_too_often(url: MediaUrl, walk: _Walk) -> FetchRejected:
    return FetchRejected(
        "The media could not be fetched: its origin redirects too often.",
        detail=str(url),
        limit_name="max_redirects",
        limit=walk.redirects_max,
        actual=walk.redirects + 1,
    )


def _check_status(response: aiohttp.ClientResponse, url: MediaUrl) -> None:
    """Accept a plain 200 or 203. Raises FetchRejected, FetchFailed, Broken (5xx)."""
    status = response.status
    detail = f"{url}: {status}"
    if status in (200, 203):
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            # Undoing it would need a cap of its own; an origin that ignores "identity" is rare enough to be refused.
            public = "The media could not be fetched: its origin sends it compressed although asked not to."
            raise FetchRejected(public, detail=f"{detail} {encoding[:40]!r}")
        return
    public = f"The media could not be fetched: its origin answered {_PHRASES.get(status, str(status))}."
    if status >= 500:
        raise Broken(FetchFailed(public, detail=detail))
    if status in (408, 425, 429):
        # Not tried again here, but it is not the client's fault either: it may come back later.
        raise FetchFailed(public, detail=detail)
    if status in (401, 403):
        public += " It may want a fresh signature or another User-Agent than this server is set to send."
    raise FetchRejected(public, detail=detail)


async def _stream(response: aiohttp.ClientResponse, sink: Sink, url: MediaUrl) -> _Body:
    digest, size = blake3(), 0
    sink.open(response.content_length)
    async for chunk in response.content.iter_any():
        sink.write(chunk)
        digest.update(chunk)
        size += len(chunk)
    if size == 0:
        raise FetchRejected("The media could not be fetched: its origin answered with an empty body.", detail=str(url))
    return _Body(digest.hexdigest(), size)
