"""The outbound proxy of media fetches: only the one that is set, never one from the environment; and the only name that the HTTP client may
resolve.
"""

from __future__ import annotations

import base64
import errno
import re
import socket
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

import aiohttp.abc

from foveate.core.errors import StartupError, UrlInvalid
from foveate.media.resolve import Resolver
from foveate.media.url import parse_web

_PROXY: Final = re.compile(r"http://(?:([^@/?#]*)@)?([^@/?#]+:[0-9]+)/?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. ``authorization`` is the value of ``Proxy-Authorization``; it is in no text form of this value."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, text: str) -> Proxy:
        """Read ``http://host:port``, with ``user:password@`` before the host when the proxy wants it.

        Raises StartupError, without the text: it may hold a password.
        """
        match = _PROXY.fullmatch(text.strip())
        if match is None:
            raise StartupError("fetch.proxy must be written http://host:port or http://user:password@host:port.")
        try:
            url = parse_web("http", f"//{match.group(2)}")
        except UrlInvalid:
            raise StartupError("fetch.proxy has a host or port that is not valid; write http://host:port.") from None
        return cls(url.host, url.port, None if match.group(1) is None else _basic(match.group(1)))

    @property
    def url(self) -> str:
        """Where it is, without credentials."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


class ProxyName(aiohttp.abc.AbstractResolver):
    """The HTTP client's resolver. Refuses every name but the proxy's: that the client resolves no origin is enforced here, not believed."""

    def __init__(self, proxy: Proxy | None, resolver: Resolver | None) -> None:
        self._proxy, self._resolver = proxy, resolver

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[aiohttp.abc.ResolveResult]:
        """Return where the proxy is. Raises OSError for every other name, and as the resolver does."""
        if self._proxy is None or self._resolver is None or host != self._proxy.host:
            raise OSError(errno.EPERM, "names are resolved before the HTTP client is asked")
        return [
            {
                "hostname": host,
                "host": str(address),
                "port": port,
                "family": socket.AF_INET if address.version == 4 else socket.AF_INET6,
                "proto": socket.IPPROTO_TCP,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in await self._resolver.resolve(host, port)
        ]

    async def close(self) -> None:
        """Nothing to close: the resolver is its owner's."""


def _basic(userinfo: str) -> str:
    name, _, password = userinfo.partition(":")
    return "Basic " + base64.b64encode(unquote_to_bytes(name) + b":" + unquote_to_bytes(password)).decode("ascii")
