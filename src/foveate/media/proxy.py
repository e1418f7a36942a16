"""The outbound proxy of media fetches: only the one that is set, never one from the environment."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

from foveate.core.errors import StartupError, UrlInvalid
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


def _basic(userinfo: str) -> str:
    name, _, password = userinfo.partition(":")
    return "Basic " + base64.b64encode(unquote_to_bytes(name) + b":" + unquote_to_bytes(password)).decode("ascii")
