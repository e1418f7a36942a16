"""One HTTP request to one checked address, and what can go wrong with it in our own words.

The HTTP client is given the address, never the name: it cannot resolve, and its pool of connections is keyed by
address, port and TLS name. ``Host`` and the TLS server name are those of the URL. No proxy variables, no cookies, no
redirects followed, no compressed transfer asked for or undone. Error details carry host and path, never a query. Does
not cover: which addresses may be contacted (:mod:`foveate.media.policy`), and the whole transfer's deadline.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
import aiohttp.abc
import yarl

from foveate.core.errors import FetchFailed, FetchTimeout, FoveateError
from foveate.media.addresses import IpAddress
from foveate.media.policy import MediaUrl

IDLE_SECONDS_MAX: Final = 5.0
"""How long a connection waits for its next use; short, because idle connections count against the process's
descriptors.
"""


class Broken(Exception):
    """A transfer that may succeed when it is tried once more; carries the error to raise when it does not."""

    def __init__(self, error: FoveateError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class Progress:
    """What a transfer is doing, for the sentence when its time is up; and where, for the log."""

    doing: str = "starting"
    where: str = ""


class Transport:
    """An HTTP client for checked addresses. Made and used on one event loop."""

    def __init__(
        self, *, user_agent: str, connect_seconds_max: float, read_seconds_max: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._headers = {"User-Agent": user_agent, "Accept": "image/*,*/*;q=0.5", "Accept-Encoding": "identity"}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds_max, sock_read=read_seconds_max)
        self._tls = tls or ssl.create_default_context()
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def answer(
        self, url: MediaUrl, addresses: Sequence[IpAddress], progress: Progress
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a GET to the first of ``addresses`` that takes a connection and hold the response.

        Translates every failure of the client, in the block too. Raises FetchTimeout, FetchFailed, Broken.
        """
        try:
            response = await self._connect(url, addresses)
            try:
                yield response
            finally:
                # Drops the connection, unless the body was read to its end: then it is already back in the pool.
                response.close()
        except aiohttp.ServerTimeoutError:
            raise too_slow(progress) from None
        except aiohttp.ClientSSLError as error:
            public = "The media could not be fetched: no trusted TLS connection to its origin."
            raise FetchFailed(public, detail=_describe(url, error)) from None
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            public = "The media could not be fetched: the connection to its origin broke or was refused."
            raise Broken(FetchFailed(public, detail=_describe(url, error))) from None
        except aiohttp.ClientError as error:
            public = "The media could not be fetched: its origin does not speak proper HTTP."
            raise FetchFailed(public, detail=_describe(url, error)) from None

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _connect(self, url: MediaUrl, addresses: Sequence[IpAddress]) -> aiohttp.ClientResponse:
        for address in addresses[:-1]:
            try:
                return await self._request(url, address)
            except aiohttp.ClientSSLError:
                raise
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                continue  # nothing was sent; the next address is as good
        return await self._request(url, addresses[-1])

    async def _request(self, url: MediaUrl, address: IpAddress) -> aiohttp.ClientResponse:
        literal = f"[{address}]" if address.version == 6 else str(address)
        return await self._client().get(
            # encoded=True: not a byte of the target may change, it may be signed.
            yarl.URL(f"{url.scheme}://{literal}:{url.port}{url.target}", encoded=True),
            headers={"Host": url.authority},
            server_hostname=url.host if url.scheme == "https" else None,
            allow_redirects=False,
        )

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                ssl=self._tls,
                limit=0,  # the fetcher's gates bound the transfers; a second queue here would be unfair to hosts
                resolver=_NoNames(),
                use_dns_cache=False,
                keepalive_timeout=IDLE_SECONDS_MAX,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


class _NoNames(aiohttp.abc.AbstractResolver):
    """Refuses every name: that the HTTP client never resolves is enforced here, not believed."""

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[aiohttp.abc.ResolveResult]:
        raise OSError(errno.EPERM, "names are resolved before the HTTP client is asked")

    async def close(self) -> None:
        """Nothing to close."""


def too_slow(progress: Progress) -> FetchTimeout:
    """Return the error for a transfer whose time is up."""
    public = f"The media could not be fetched in time: time ran out while {progress.doing}."
    return FetchTimeout(public, detail=progress.where)


def _describe(url: MediaUrl, error: Exception) -> str:
    """Name what happened without the client library's own text, which may hold the URL's query."""
    cause = error.strerror if isinstance(error, OSError) and error.strerror else ""
    return f"{url}: {type(error).__name__} {cause}".rstrip()
