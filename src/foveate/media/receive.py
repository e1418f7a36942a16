"""What an origin answered: its status in our words, its body into a sink, counted, hashed and decompressed on the way."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Iterator
from typing import Final

import aiohttp
import msgspec
from blake3 import blake3

from foveate.core.errors import FetchFailed, FetchRejected
from foveate.media.content_encoding import decoding
from foveate.media.sink import Sink
from foveate.media.transport import Broken, Progress, timed_out
from foveate.media.url import MediaUrl

_PHRASES: Final = {status.value: f"{status.value} {status.phrase}" for status in http.HTTPStatus}


class Body(msgspec.Struct, frozen=True):
    """What a body came to: the hexadecimal BLAKE3 hash of its ``size`` bytes."""

    digest: str
    size: int


def check_status(response: aiohttp.ClientResponse, url: MediaUrl, *, proxied: bool) -> None:
    """Accept a plain 200 or 203. Raises FetchRejected, FetchFailed, Broken (5xx)."""
    status = response.status
    if status in (200, 203):
        return
    detail = f"{url}: {status}"
    if status == http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and proxied:
        raise FetchFailed("The media could not be fetched: this server's proxy wants other credentials.", detail=detail)
    public = f"The media could not be fetched: its origin answered {_PHRASES.get(status, str(status))}."
    if status >= 500:
        raise Broken(FetchFailed(public, detail=detail))
    if status in (408, 425, 429):
        # Not tried again here, but it is not the client's fault either: it may come back later.
        raise FetchFailed(public, detail=detail)
    if status in (401, 403):
        public += " It may want a fresh signature or another User-Agent than this server is set to send."
    raise FetchRejected(public, detail=detail)


class Pour:
    """Bytes on their way into a sink, hashed and counted."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._digest, self.size = sink, blake3(), 0

    def write(self, piece: bytes) -> None:
        self._sink.write(piece)
        self._digest.update(piece)
        self.size += len(piece)

    def body(self) -> Body:
        return Body(self._digest.hexdigest(), self.size)


async def receive(response: aiohttp.ClientResponse, sink: Sink, progress: Progress, *, read_seconds_max: float) -> Body:
    """Take the body. Raises FetchRejected when it is empty or damaged, FetchTimeout when it stops coming."""
    inflation = decoding(response.headers.getall("Content-Encoding", ()))
    pour = Pour(sink)
    sink.open(response.content_length if inflation is None else None)
    while chunk := await _next(response, progress, read_seconds_max):
        if inflation is None:
            pour.write(chunk)
        else:
            await _inflate(inflation.pieces(chunk), pour)
    if inflation is not None:
        await _inflate(inflation.finish(), pour)
    if pour.size == 0:
        public = "The media could not be fetched: its origin answered with an empty body."
        raise FetchRejected(public, detail=progress.where)
    return pour.body()


async def _next(response: aiohttp.ClientResponse, progress: Progress, seconds: float) -> bytes:
    progress.begin("receiving it")
    try:
        async with asyncio.timeout(seconds):
            return await response.content.readany()
    except TimeoutError:
        raise timed_out("fetch.read_seconds", seconds, "its origin stopped sending", progress) from None


async def _inflate(pieces: Iterator[bytes], pour: Pour) -> None:
    for piece in pieces:
        pour.write(piece)
        await asyncio.sleep(0)  # a few bytes may hold many of these steps; others must run in between
