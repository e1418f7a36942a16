"""Talks to servers behind this one: a pool of connections of its own, apart from the one that fetches media.

Their addresses are the operator's configuration, so the URL policy for clients' media says nothing here. Proxy variables of the environment
are not used, and redirects not followed: a server that redirects is not the one that was configured.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from foveate.core.errors import FoveateError, UpstreamFailed, UpstreamUnavailable
from foveate.core.errors.upstream import ANSWER_BYTES_MAX, refusal_of
from foveate.engines.port import RelayWork
from foveate.engines.upstream.body import Body
from foveate.engines.upstream.config import ServerConfig

KEEP_ALIVE_SECONDS: Final = 4.0
"""Shorter than the five seconds after which uvicorn closes an idle connection, vLLM's and SGLang's default."""
ANSWER_WHOLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of an answer that is no stream."""
LISTING_BYTES_MAX: Final = 1024 * 1024
LAST_FRAMES_SECONDS: Final = 0.25
"""How long a connection may take to end after a stream's last event, to be used again; else it is closed."""


class Stale(Exception):
    """A kept connection turned out to be closed by the other side; nothing of the request was answered, and it may be sent again."""


class Gone(Exception):
    """Nobody listens there, or it could not be connected to in time."""


class _Told(msgspec.Struct):
    message: str | None = None
    param: str | None = None


class UpstreamHttp:
    """Sends requests and looks. Made within a running loop; lives on it."""

    def __init__(self, *, user_agent: str, connect_seconds: float) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
            headers={"User-Agent": user_agent, "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            read_bufsize=256 * 1024,
        )

    @asynccontextmanager
    async def post(
        self, server: ServerConfig, path: str, body: Body, work: RelayWork
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and wait for its answer's head. Leaving before the answer's end closes the connection at once.

        Raises Gone, Stale, UpstreamFailed.
        """
        headers = {
            **_authorization(server),
            "Content-Type": "application/json",
            "Content-Length": str(body.size),
            "X-Request-Id": work.request_id.rpartition("-")[2],
        }
        if work.trace:
            headers["traceparent"] = work.trace
        try:
            response = await self._session.post(
                server.url + path, data=body.data(), headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ssl.SSLError) as error:
            raise Gone(str(error)) from error
        except (aiohttp.ServerDisconnectedError, ConnectionResetError) as error:
            raise Stale from error
        except aiohttp.ClientError as error:
            raise UpstreamFailed(detail=f"{server.name}: {type(error).__name__} {error}") from error
        try:
            yield response
        finally:
            # Of an answer that was read to its end the connection has gone back to the pool; any other is closed.
            response.close()

    async def get(self, server: ServerConfig, path: str, seconds_max: float) -> tuple[int, bytes]:
        """Return status and body of a small answer. Raises Gone, or UpstreamFailed when it does not answer in time."""
        try:
            async with (
                asyncio.timeout(seconds_max),
                self._session.get(server.url + path, headers=_authorization(server), allow_redirects=False) as response,
            ):
                return response.status, await _beginning(response, LISTING_BYTES_MAX)
        except (aiohttp.ClientConnectorError, ssl.SSLError) as error:
            raise Gone(str(error)) from error
        except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
            raise UpstreamFailed(detail=f"{server.name}: {path}: {type(error).__name__}") from error

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.close()


async def pieces(response: aiohttp.ClientResponse, server: ServerConfig) -> AsyncGenerator[bytes, None]:
    """Yield an answer as it comes. Raises UpstreamFailed when it is cut off."""
    try:
        async for data in response.content.iter_any():
            yield data
    except (aiohttp.ClientError, ConnectionError) as error:
        raise UpstreamFailed(detail=f"{server.name}: cut off: {type(error).__name__}") from error


async def whole(response: aiohttp.ClientResponse, server: ServerConfig) -> bytes:
    """Return an answer that is no stream. Raises UpstreamFailed when it is cut off or too long."""
    found = bytearray()
    async for data in pieces(response, server):
        found += data
        if len(found) > ANSWER_WHOLE_BYTES_MAX:
            raise UpstreamFailed(detail=f"{server.name}: an answer of more than {ANSWER_WHOLE_BYTES_MAX} bytes")
    return bytes(found)


async def _beginning(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Return an answer up to so many bytes. One read alone would return whatever had come first."""
    found = bytearray()
    while len(found) < bytes_max and (data := await response.content.read(bytes_max - len(found))):
        found += data
    return bytes(found)


async def ended(response: aiohttp.ClientResponse) -> None:
    """Give a stream's last bytes a moment to come, so that its connection can be used again."""
    try:
        async with asyncio.timeout(LAST_FRAMES_SECONDS):
            while not response.content.at_eof():
                await response.content.readany()
    except (TimeoutError, aiohttp.ClientError, ConnectionError):
        return


async def refusal(response: aiohttp.ClientResponse, server: ServerConfig) -> FoveateError:
    """Return what an answer that is no success says."""
    try:
        body = await _beginning(response, ANSWER_BYTES_MAX + 1)
    except (aiohttp.ClientError, ConnectionError):
        body = b""
    if server.api_key:
        # Some say which key it was that they do not know.
        body = body.replace(server.api_key.encode(), b"[key]")
    after = response.headers.get("Retry-After", "")
    return told(
        response.status, body, server.name, retry_after=float(after) if after.isdigit() and len(after) < 6 else None
    )


def told(status: int, body: bytes, name: str, *, retry_after: float | None = None) -> FoveateError:
    """Return the error for an upstream's ``status`` and ``body``, its own words for the client where they are JSON."""
    kind = refusal_of(status)
    answer = _error_object(body)
    said = _said(answer)
    # What it says of its keys, or of this server's, is for the operator alone.
    mine = status in (401, 403) or status < 400
    error = kind(
        None if mine else said.message,
        detail=f"{name}: {status} {body[:200]!r}",
        param=None if mine else said.param,
        retry_after_seconds=retry_after,
    )
    error.answer = b"" if mine else answer
    return error


def unavailable(name: str, error: Exception) -> UpstreamUnavailable:
    """Return the error for a server that cannot be reached."""
    return UpstreamUnavailable(detail=f"{name}: {error}")


def _error_object(body: bytes) -> bytes:
    """Return the JSON object that says what is wrong: OpenAI's ``error``, or the body itself; empty where it is neither."""
    if len(body) > ANSWER_BYTES_MAX:
        return b""
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        inner = found.get("error")
        if inner is None:
            return msgspec.json.encode(found)
        msgspec.json.decode(inner, type=dict[str, msgspec.Raw])
        return bytes(inner)
    except (msgspec.DecodeError, RecursionError):
        return b""


def _said(answer: bytes) -> _Told:
    try:
        return msgspec.json.decode(answer, type=_Told) if answer else _Told()
    except msgspec.DecodeError:
        return _Told()


def _authorization(server: ServerConfig) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
