"""The text of a media URL, read once and strictly. Pure: judges spelling, not what may be contacted.

The parsed value, never the text, goes to the HTTP client, so that no second parser can find another host in it. What
could mean different hosts to different readers is an error. Does not cover: which schemes, hosts, ports and addresses
are allowed (:mod:`foveate.media.policy`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import unquote_to_bytes

from foveate.core.errors import UrlInvalid
from foveate.media.addresses import IpAddress

URL_CHARACTERS_MAX: Final = 8192
"""Longer request lines are refused by most origins anyway."""

DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029\u3000]")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_\-]{0,61}[a-z0-9_])?")
_NUMERIC_LABEL: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_RAW_BASE64: Final = re.compile(r"[A-Za-z0-9+/_\-]{40,}={0,2}")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NOT_IN_A_PATH: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """A parsed URL. ``host`` is lower-case ASCII without a trailing dot (or an IP address without brackets).

    ``target`` is path and query as the client wrote them, byte for byte (non-ASCII characters percent-encoded as
    UTF-8): a signature over them stays valid. ``address`` is set when the host is an IP literal. The fragment is
    gone. A ``file:`` URL has no host and port 0; its ``target`` is the decoded path from the configured root.
    """

    scheme: str
    host: str
    port: int
    target: str
    address: IpAddress | None = None

    @property
    def bracketed(self) -> str:
        """The host as a URL spells it: brackets for IPv6."""
        return f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host

    @property
    def authority(self) -> str:
        """The ``Host`` header's value: no default port."""
        usual = self.port in (0, DEFAULT_PORTS.get(self.scheme))
        return self.bracketed if usual else f"{self.bracketed}:{self.port}"

    @property
    def path(self) -> str:
        """The path without the query, which may hold credentials."""
        return self.target.partition("?")[0]

    def __str__(self) -> str:
        """Scheme, host and path: fit for a log, never the query."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def __repr__(self) -> str:
        """The same: a value in a traceback must not leak a signature."""
        return f"MediaUrl({self})"


def check_characters(text: str) -> None:
    """Raise UrlInvalid when ``text`` is too long or holds what readers of URLs disagree about."""
    if len(text) > URL_CHARACTERS_MAX:
        raise UrlInvalid(f"The media URL is longer than {URL_CHARACTERS_MAX} characters.")
    found = _FORBIDDEN.search(text)
    if found is not None:
        what = "a backslash" if found.group() == "\\" else "whitespace or a control character"
        raise UrlInvalid(f"The media URL contains {what}; percent-encode it.")


def has_scheme(text: str) -> bool:
    """Whether ``text`` is absolute, as opposed to a path relative to another URL."""
    return _SCHEME.fullmatch(text) is not None


def split_scheme(url: str) -> tuple[str, str]:
    """Return the scheme in lower case and what follows its colon. Raises UrlInvalid."""
    check_characters(url)
    match = _SCHEME.fullmatch(url)
    if match is None:
        if _RAW_BASE64.fullmatch(url):
            raise UrlInvalid("The media URL looks like bare base64; put data:image/...;base64, before it.")
        raise UrlInvalid("The media URL has no scheme; write https://host/path or data:image/...;base64,...")
    return match.group(1).lower(), match.group(2)


def parse_web(scheme: str, rest: str) -> MediaUrl:
    """Parse what follows ``http:`` or ``https:``. Raises UrlInvalid."""
    authority, target = _split_authority(rest)
    host_text, port = _split_port(authority, DEFAULT_PORTS[scheme])
    host, address = parse_host(host_text)
    return MediaUrl(scheme, host, port, target, address)


def parse_file(rest: str) -> str:
    """Return the absolute path that follows ``file:``, decoded once. Raises UrlInvalid."""
    if not rest.startswith("//"):
        raise UrlInvalid("A file URL must have three slashes: file:///directory/name.")
    host, slash, path = rest[2:].partition("#")[0].partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise UrlInvalid("A file URL must not name a host; write file:///directory/name.")
    if "?" in path:
        raise UrlInvalid("A file URL has no query; write a question mark in a name as %3F.")
    if _BAD_ESCAPE.search(path):
        raise UrlInvalid("The file URL has a percent sign without two hexadecimal digits.")
    try:
        decoded = unquote_to_bytes(path).decode("utf-8")
    except UnicodeError:
        raise UrlInvalid("The file URL's path is not valid UTF-8.") from None
    if _NOT_IN_A_PATH.search(decoded):
        raise UrlInvalid("The file URL's path holds a backslash or a control character.")
    return "/" + decoded


def resolve_target(base: str, reference: str) -> str:
    """Return the path and query that ``reference``, which has neither scheme nor host, means where ``base`` was asked for (RFC 3986, 5.2).

    Always begins with a slash. What is not a step of the path stays byte for byte, and an absolute path as a whole: it may be signed.
    """
    path, mark, query = reference.partition("?")
    base_path = base.partition("?")[0]
    if not path:
        return f"{base_path}{mark}{query}" if mark else base
    if path.startswith("/"):
        return reference
    merged = base_path[: base_path.rindex("/") + 1] + path
    return f"{_without_dots(merged)}{mark}{query}"


def _without_dots(path: str) -> str:
    """Undo the steps ``.`` and ``..`` (RFC 3986, 5.2.4). Empty segments count as segments."""
    steps = path.split("/")[1:]
    kept: list[str] = []
    for step in steps:
        if step == "..":
            del kept[-1:]
        elif step != ".":
            kept.append(step)
    if steps[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def parse_host(text: str) -> tuple[str, IpAddress | None]:
    """Return the one form of a host, and its address when it is one. Raises UrlInvalid."""
    if text.startswith("["):
        try:
            literal = IPv6Address(text[1:-1])
        except ValueError:
            raise UrlInvalid("The media URL's IPv6 address is not valid.") from None
        return str(literal), literal
    host = text.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlInvalid("The media URL's host is not a valid name.")
    if not _NUMERIC_LABEL.fullmatch(labels[-1]):
        return host, None
    # A name whose last label is a number is an IPv4 address to some resolvers (WHATWG URL, "ends in a number"): only
    # the canonical dotted quad is taken, never the decimal, octal, hexadecimal or short spellings.
    try:
        address = IPv4Address(host)
    except ValueError:
        raise UrlInvalid("The media URL's IPv4 address must be written as four decimal numbers.") from None
    return host, address


def _split_authority(rest: str) -> tuple[str, str]:
    if not rest.startswith("//"):
        raise UrlInvalid("The media URL must have two slashes and a host after its scheme.")
    rest = rest.partition("#")[0]
    end = min((at for at in (rest.find("/", 2), rest.find("?", 2)) if at >= 0), default=len(rest))
    target = rest[end:]
    if not target.startswith("/"):
        target = "/" + target
    if not target.isascii():
        # What a browser does; the rest of the target stays as it was written.
        try:
            encoded = target.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise UrlInvalid("The media URL is not valid Unicode.") from None
        target = "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in encoded)
    return rest[2:end], target


def _split_port(authority: str, default_port: int) -> tuple[str, int]:
    if "@" in authority:
        raise UrlInvalid("The media URL must not hold a user name or password.")
    if not authority.isascii():
        raise UrlInvalid("The media URL's host must be ASCII; write an international name in its xn-- form.")
    match = _AUTHORITY.fullmatch(authority)
    if match is None or not match.group(1):
        raise UrlInvalid("The media URL's host is missing or not valid.")
    host, port_text = match.group(1), match.group(2)
    if port_text is None:
        return host, default_port
    if not _PORT.fullmatch(port_text) or not 1 <= int(port_text) <= 65535:
        raise UrlInvalid("The media URL's port is not valid.")
    return host, int(port_text)
