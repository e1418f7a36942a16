"""One HTTP request to one checked address, and what can go wrong with it in our own words.

The HTTP client is given the address, never the name: it cannot resolve, and its pool of connections is keyed by
address, port and TLS name. ``Host`` and the TLS server name are those of the URL. No proxy variables, no cookies, no
redirects followed, no request sent twice, no compressed transfer asked for or undone here. Error details carry host and
path, never a query.
Does not cover: which addresses may be contacted (:mod:`foveate.media.policy`), and the whole transfer's deadline.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Final

import aiohttp
import msgspec
import yarl

from foveate.core.clock import now
from foveate.core.errors import FetchFailed, FetchTimeout, FoveateError
from foveate.media.addresses import IpAddress
from foveate.media.dead_hosts import Sign
from foveate.media.proxy import Proxy, ProxyName
from foveate.media.resolve import Resolver
from foveate.media.url import MediaUrl

IDLE_SECONDS_MAX: Final = 5.0
"""How long a connection waits for its next use; short, because idle connections count against the process's
descriptors.
"""


class Broken(Exception):
    """A transfer that may succeed when it is tried once more; carries the error to raise when it does not.

    ``stale`` tells that only a connection kept from earlier was closed: nothing speaks against trying at once.
    """

    def __init__(self, error: FoveateError, *, stale: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.stale = stale


class _Dropped(Exception):
    """The connection was lost before an answer. No error of the HTTP client's, which on those of a kept connection sends a GET again."""


@dataclass(slots=True)
class Progress:
    """What a transfer is doing and since when, for the sentence when its time is up; where, for the log; what its
    present exchange told about the host, and whether that goes over a connection kept from an earlier one; redirects
    followed and tries after the first, for whoever asks how far it came.
    """

    doing: str = "starting"
    where: str = ""
    since: float = field(default_factory=now)
    sign: Sign = "none"
    reused: bool = False
    redirects: int = 0
    retries: int = 0

    def begin(self, doing: str) -> None:
        """The next part begins, with its own time."""
        self.doing, self.since = doing, now()


class TransportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long each part of one exchange may take, in seconds."""

    connect_seconds_max: float
    """TCP, TLS and a proxy's consent, for each address tried."""
    first_byte_seconds_max: float
    """From the connection to the end of the answer's headers."""


class Transport:
    """An HTTP client for checked addresses. Made and used on one event loop.

    With a ``proxy`` it is given names instead, which the proxy resolves; ``resolver`` then looks up the proxy's own.
    """

    def __init__(
        self,
        limits: TransportLimits,
        *,
        user_agent: str,
        tls: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self._limits = limits
        self._headers = {"User-Agent": user_agent, "Accept": "image/*,*/*;q=0.5", "Accept-Encoding": "identity"}
        self._tls = tls or ssl.create_default_context()
        self._proxy = proxy
        self._names = ProxyName(proxy, resolver)
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    @asynccontextmanager
    async def answer(
        self,
        url: MediaUrl,
        addresses: Sequence[IpAddress],
        progress: Progress,
        condition: tuple[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a GET to the first of ``addresses`` that takes a connection and hold the response.

        ``condition`` is a field that makes it a conditional one. No addresses: the proxy gets the name. It is sent once; a try after the
        first has a connection of its own. Translates every failure of the client, in the block too. Raises FetchTimeout, FetchFailed,
        Broken.
        """
        try:
            response = await self._connect(url, addresses, progress, condition)
            progress.sign = "alive"
            try:
                yield response
            finally:
                # Drops the connection, unless the body was read to its end: then it is already back in the pool.
                response.close()
        except aiohttp.ConnectionTimeoutError:
            if self._proxy is None:
                _tell(progress, "unreachable")
            seconds = self._limits.connect_seconds_max
            raise timed_out("fetch.connect_seconds", seconds, "its origin took no connection", progress) from None
        except aiohttp.ClientSSLError as error:
            _tell(progress, "unreachable")
            public = "The media could not be fetched: no trusted TLS connection to its origin."
            raise FetchFailed(public, detail=_describe(url, error)) from None
        except aiohttp.ClientProxyConnectionError as error:
            public = "The media could not be fetched: this server's proxy cannot be reached."
            raise Broken(FetchFailed(public, detail=_describe(url, error))) from None
        except aiohttp.ClientHttpProxyError as error:
            public = "The media could not be fetched: this server's proxy does not connect to its origin."
            raise FetchFailed(public, detail=f"{_describe(url, error)} {error.status}") from None
        except (_Dropped, aiohttp.ClientPayloadError, aiohttp.ClientOSError) as error:
            # Closing a connection that was idle is an origin's right, and tells nothing about the host.
            stale = progress.reused and isinstance(error, _Dropped)
            if not stale:
                _tell(progress, "unreachable" if isinstance(error, aiohttp.ClientConnectorError) else "silent")
            public = "The media could not be fetched: the connection to its origin broke or was refused."
            raise Broken(FetchFailed(public, detail=_describe(url, error)), stale=stale) from None
        except aiohttp.ClientError as error:
            public = "The media could not be fetched: its origin does not speak proper HTTP."
            raise FetchFailed(public, detail=_describe(url, error)) from None

    async def aclose(self) -> None:
        """Close every connection."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    async def _connect(
        self,
        url: MediaUrl,
        addresses: Sequence[IpAddress],
        progress: Progress,
        condition: tuple[str, str] | None,
    ) -> aiohttp.ClientResponse:
        if not addresses:
            return await self._request(url, url.bracketed, progress, condition)
        for address in addresses[:-1]:
            try:
                return await self._request(url, _literal(address), progress, condition)
            except aiohttp.ClientSSLError:
                raise
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                continue  # nothing was sent; the next address is as good
        return await self._request(url, _literal(addresses[-1]), progress, condition)

    async def _request(
        self, url: MediaUrl, host: str, progress: Progress, condition: tuple[str, str] | None
    ) -> aiohttp.ClientResponse:
        headers = {"Host": url.authority, **({} if condition is None else dict((condition,)))}
        consent = None
        if self._proxy is not None and self._proxy.authorization is not None:
            consent = {"Proxy-Authorization": self._proxy.authorization}
            if url.scheme == "http":
                headers |= consent
        progress.begin("connecting to its origin")
        try:
            async with asyncio.timeout(None) as first_byte:
                return await self._client(fresh=progress.retries > 0).get(
                    # Not a byte of the target may change, it may be signed: as a ready-made path, with its query, it is
                    # not looked at (an empty query would lose its question mark).
                    yarl.URL.build(scheme=url.scheme, authority=f"{host}:{url.port}", path=url.target, encoded=True),
                    headers=headers,
                    server_hostname=url.host if url.scheme == "https" else None,
                    proxy=self._proxy.url if self._proxy is not None else None,
                    proxy_headers=consent if url.scheme == "https" else None,
                    allow_redirects=False,
                    trace_request_ctx=(first_byte, progress),
                )
        except aiohttp.ConnectionTimeoutError:
            raise
        except TimeoutError:
            _tell(progress, "silent")
            seconds = self._limits.first_byte_seconds_max
            raise timed_out("fetch.first_byte_seconds", seconds, "its origin did not answer", progress) from None

    async def _connected(self, _session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
        """The connection stands: from now on the answer's headers are waited for."""
        timer, progress = context.trace_request_ctx
        progress.reused = isinstance(params, aiohttp.TraceConnectionReuseconnParams)
        progress.begin("waiting for its origin to answer")
        timer.reschedule(asyncio.get_running_loop().time() + self._limits.first_byte_seconds_max)

    def _client(self, *, fresh: bool) -> aiohttp.ClientSession:
        """Return the client that keeps connections, or, ``fresh``, the one that never does."""
        session = self._sessions.get(fresh)
        if session is None:
            connector = aiohttp.TCPConnector(
                ssl=self._tls,
                limit=0,  # the fetcher's gates bound the transfers; a second queue here would be unfair to hosts
                resolver=self._names,
                use_dns_cache=False,
                force_close=fresh,
                keepalive_timeout=None if fresh else IDLE_SECONDS_MAX,
            )
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(self._connected)
            trace.on_connection_reuseconn.append(self._connected)
            session = self._sessions[fresh] = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=self._limits.connect_seconds_max,
                    sock_connect=self._limits.connect_seconds_max,
                ),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                trace_configs=[trace],
                middlewares=[_once],
            )
        return session


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request once. The client, by itself, sends a GET again when a connection turns out lost, and whether it was kept or new: how
    often an origin is asked is the fetcher's to decide and to count. Raises _Dropped instead, which the client lets pass.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise  # nothing was sent
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Dropped(_name(error)) from None


def timed_out(limit_name: str, seconds: float, what: str, progress: Progress) -> FetchTimeout:
    """Return the error for a limit of its own that ran out."""
    public = f"The media could not be fetched in time: {what} ({limit_name}: {seconds:g} s)."
    actual = round(now() - progress.since, 3)
    return FetchTimeout(public, detail=progress.where, limit_name=limit_name, limit=seconds, actual=actual)


def _tell(progress: Progress, sign: Sign) -> None:
    """Note why nothing came. Once a status line came the host is alive, whatever becomes of the rest."""
    if progress.sign != "alive":
        progress.sign = sign


def _literal(address: IpAddress) -> str:
    return f"[{address}]" if address.version == 6 else str(address)


def _describe(url: MediaUrl, error: Exception) -> str:
    """Name what happened without the client library's own text, which may hold the URL's query."""
    if isinstance(error, _Dropped):
        return f"{url}: {error}"
    return f"{url}: {_name(error)}"


def _name(error: Exception) -> str:
    cause = error.strerror if isinstance(error, OSError) and error.strerror else ""
    return f"{type(error).__name__} {cause}".rstrip()
