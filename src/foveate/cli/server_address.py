"""What a command that asks a server is told of it, checked before anything is sent."""

from __future__ import annotations

import urllib.parse

from foveate.cli.log_source import printable


def address_fault(url: str, key: str | None) -> str | None:
    """Say what keeps ``url`` and ``key`` from being used; None if nothing does.

    Never repeats the key, which what refuses malformed headers would.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        return f"--url is {url!r}, but it must begin with http:// or https:// and name a host."
    if key and not all("!" <= character <= "~" for character in key):
        return "--key or its variable holds no key: a key is printable ASCII without spaces."
    return None


def one_line(told: object) -> str:
    """Return what an unknown server or a library said as one printable line."""
    return printable(" ".join(str(told).split()))
