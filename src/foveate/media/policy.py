"""Which media URLs may be contacted. Pure: parses text and judges addresses, resolves nothing, opens nothing.

Covers: one strict parse whose result, never the text, goes to the HTTP client; schemes, ports, host names, every
address a name resolves to, every hop of a redirect; openings for private networks and hosts. Does not cover: an
outbound proxy, which would resolve names itself (the fetcher uses none).

There is no ``file:`` scheme, and no way to switch the address check off as a whole: an opening names a network or a
host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final
from urllib.parse import urljoin

import idna

from foveate.core.errors import StartupError, UrlInvalid, UrlRefused
from foveate.media.addresses import METADATA, IpAddress, embedded, refusal

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
_METADATA_NAMES: Final = frozenset({"metadata.google.internal", "metadata.goog", "metadata"})


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """A parsed URL. ``host`` is lower-case ASCII without a trailing dot (or an IP address without brackets).

    ``target`` is path and query as the client wrote them, byte for byte (non-ASCII characters percent-encoded as
    UTF-8): a signature over them stays valid. ``address`` is set when the host is an IP literal. The fragment is
    gone.
    """

    scheme: str
    host: str
    port: int
    target: str
    address: IpAddress | None = None

    @property
    def authority(self) -> str:
        """The ``Host`` header's value: brackets for IPv6, no default port."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

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


@dataclass(frozen=True, slots=True)
class UrlPolicy:
    """The operator's choices. Build it with :meth:`of`, which checks them.

    ``networks`` are opened for everybody. ``hosts`` (exact names, and ``*.`` suffixes as ``.example.com``) may
    resolve to non-public addresses. Neither opens a metadata address; only a network of that single address does.
    """

    schemes: frozenset[str] = frozenset({"https"})
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    hosts: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset({80, 443})

    @classmethod
    def of(
        cls,
        *,
        http_allowed: bool = False,
        private_networks: Iterable[str] = (),
        hosts: Iterable[str] = (),
        ports: Iterable[int] = (),
    ) -> UrlPolicy:
        """Build a policy from plain settings; ``ports`` are allowed besides 80 and 443.

        Raises StartupError that names the entry which can never match.
        """
        for port in ports:
            if not 1 <= port <= 65535:
                raise StartupError(f"{port} is not a port; media ports are numbers from 1 to 65535.")
        return cls(
            schemes=frozenset({"https", "http"} if http_allowed else {"https"}),
            networks=tuple(_network(text) for text in private_networks),
            hosts=frozenset(_host_pattern(text) for text in hosts),
            ports=frozenset({80, 443, *ports}),
        )

    def parse(self, url: str) -> MediaUrl:
        """Parse once, strictly; judge scheme, port, and the host as far as it needs no resolving.

        Raises UrlInvalid when the text could mean different hosts to different readers, UrlRefused when the policy
        forbids it.
        """
        scheme, rest = _split_scheme(url)
        if scheme not in self.schemes:
            raise UrlRefused(f"Media URLs may use {self._schemes_text()} only (rule: scheme).")
        authority, target = _split_authority(rest)
        host_text, port = _split_port(authority, DEFAULT_PORTS[scheme])
        host, address = _parse_host(host_text)
        if port not in self.ports:
            raise UrlRefused("Media URLs may use the usual web ports only (rule: port).")
        parsed = MediaUrl(scheme, host, port, target, address)
        if address is not None:
            self.check_address(parsed, address)
        else:
            self._check_name(parsed)
        return parsed

    def follow(self, url: MediaUrl, location: str) -> MediaUrl:
        """Return where a redirect from ``url`` leads; the whole policy applies to it, and https never falls back to
        http.
        """
        location = location.partition("#")[0]
        if _SCHEME.fullmatch(location):
            next_url = self.parse(location)
        elif location.startswith("//"):
            next_url = self.parse(f"{url.scheme}:{location}")
        else:
            _check_characters(location)
            # Only a relative path is joined: the authority never passes through urljoin's own parser, and an absolute
            # path stays as it is.
            target = location if location.startswith("/") else urljoin(url.target, location)
            next_url = self.parse(f"{url.scheme}://{url.authority}{target}")
        if url.scheme == "https" and next_url.scheme == "http":
            raise UrlRefused("The media URL redirects from https to http (rule: downgrade).")
        return next_url

    def check_address(self, url: MediaUrl, ip: IpAddress) -> None:
        """Judge an address that ``url``'s host is, or resolves to. Raises UrlRefused that names the rule, never the
        address.
        """
        rule = refusal(ip)
        if rule is None or self._opened(url, ip, rule):
            return
        raise UrlRefused(
            f"The media URL leads to an address that is not public (rule: {rule}).",
            detail=f"{url.host} is {ip} ({rule})",
        )

    def _opened(self, url: MediaUrl, ip: IpAddress, rule: str) -> bool:
        inner = embedded(ip)
        within = [
            network
            for network in self.networks
            if _inside(ip, network) or (inner and all(_inside(i, network) for i in inner))
        ]
        if rule == METADATA:
            return any(network.num_addresses == 1 for network in within)
        return bool(within) or self._host_listed(url.host)

    def _host_listed(self, host: str) -> bool:
        if host in self.hosts:
            return True
        labels = host.split(".")
        return any("." + ".".join(labels[start:]) in self.hosts for start in range(1, len(labels)))

    def _check_name(self, url: MediaUrl) -> None:
        """Refuse names that are local or metadata by convention, whatever a resolver makes of them."""
        if url.host == "localhost" or url.host.endswith(".localhost"):
            self.check_address(url, IPv4Address("127.0.0.1"))
        if url.host in _METADATA_NAMES:
            self.check_address(url, IPv4Address("169.254.169.254"))

    def _schemes_text(self) -> str:
        return " and ".join(sorted(self.schemes, reverse=True))


def _inside(ip: IpAddress, network: IPv4Network | IPv6Network) -> bool:
    return ip.version == network.version and ip in network


def _check_characters(text: str) -> None:
    if len(text) > URL_CHARACTERS_MAX:
        raise UrlInvalid(f"The media URL is longer than {URL_CHARACTERS_MAX} characters.")
    found = _FORBIDDEN.search(text)
    if found is not None:
        what = "a backslash" if found.group() == "\\" else "whitespace or a control character"
        raise UrlInvalid(f"The media URL contains {what}; percent-encode it.")


def _split_scheme(url: str) -> tuple[str, str]:
    _check_characters(url)
    match = _SCHEME.fullmatch(url)
    if match is None:
        if _RAW_BASE64.fullmatch(url):
            raise UrlInvalid("The media URL looks like bare base64; put data:image/...;base64, before it.")
        raise UrlInvalid("The media URL has no scheme; write https://host/path or data:image/...;base64,...")
    return match.group(1).lower(), match.group(2)


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


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip())
    except ValueError:
        raise StartupError(f"{text!r} is not a network; write it like 10.0.0.0/8 or fd00::/8.") from None


def _host_pattern(text: str) -> str:
    """Normalise an allowed host as URL hosts are: IDNA 2008, lower-case, no trailing dot. ``*.x`` becomes ``.x``."""
    name = text.strip().lower()
    wildcard = name.startswith("*.")
    try:
        host, address = _parse_host(idna.encode(name[2:] if wildcard else name, uts46=True).decode())
    except (UrlInvalid, idna.IDNAError):
        raise StartupError(f"{text!r} is not a host name; write example.com or *.example.com.") from None
    if address is not None:
        raise StartupError(f"{text!r} is an address; list it as a private network instead.")
    return "." + host if wildcard else host


def _parse_host(text: str) -> tuple[str, IpAddress | None]:
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
