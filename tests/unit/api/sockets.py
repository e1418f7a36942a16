"""A client that speaks bytes, to do what well-behaved clients do not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any


class Raw:
    """One connection to a server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, body: bytes | dict[str, Any], *headers: str, path: str = "/v1/chat/completions") -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(raw)}", *headers, "", ""]
        await self.send("\r\n".join(lines).encode() + raw)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read a response's head."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        status = int(lines[0].split(" ")[1])
        return status, {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}

    async def reply(self) -> tuple[int, dict[str, str], Any]:
        """Read a whole JSON response."""
        status, headers = await self.head()
        return status, headers, json.loads(await self.reader.readexactly(int(headers["content-length"])))

    async def until(self, mark: bytes) -> bytes:
        return await self.reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Read until the server closes, be it with a reset because it left some of what was sent unread."""
        read = bytearray()
        with suppress(ConnectionResetError):
            while data := await self.reader.read(65536):
                read += data
        return bytes(read)

    def abort(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()
