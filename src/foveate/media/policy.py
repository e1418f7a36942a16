"""Which media URLs may be contacted. Pure but for one look at the file root: resolves nothing, opens nothing.

Covers: schemes, ports, the list of hosts that a server is restricted to, every address a name resolves to, every hop of
a redirect; openings for private networks and hosts; which local files are beneath the configured root. Does not cover:
how a URL is spelled (:mod:`foveate.media.url`), what an outbound proxy resolves a name to
(:meth:`UrlPolicy.check_proxied` judges the name alone).

There is no way to switch the address check off as a whole: an opening names a network or a host.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import Final

from foveate.core.errors import StartupError, UrlRefused
from foveate.media.addresses import METADATA, IpAddress, refusal
from foveate.media.hosts import NO_HOSTS, HostList, is_local_name
from foveate.media.url import (
    MediaUrl,
    check_characters,
    has_scheme,
    parse_file,
    parse_web,
    resolve_target,
    split_scheme,
)

_METADATA_NAMES: Final = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "instance-data",
        "instance-data.ec2.internal",
    }
)


@dataclass(frozen=True, slots=True)
class UrlPolicy:
    """The operator's choices. Build it with :meth:`of`, which checks them.

    ``only_hosts``, unless empty, is all that may be contacted. ``networks`` are opened for everybody. ``hosts`` may
    resolve to non-public addresses. Neither opens a metadata address; only a network of that single address does.
    ``file_root`` is the directory that ``file:`` URLs may read beneath; empty: none.
    """

    schemes: frozenset[str] = frozenset({"https"})
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    hosts: HostList = NO_HOSTS
    only_hosts: HostList = NO_HOSTS
    ports: frozenset[int] = frozenset({80, 443})
    file_root: str = ""

    @classmethod
    def of(
        cls,
        *,
        http_allowed: bool = False,
        private_networks: Iterable[str] = (),
        hosts: Iterable[str] = (),
        only_hosts: Iterable[str] = (),
        ports: Iterable[int] = (),
        file_root: str | None = None,
    ) -> UrlPolicy:
        """Build a policy from plain settings; ``ports`` are allowed besides 80 and 443.

        Raises StartupError that names the entry which can never match.
        """
        for port in ports:
            if not 1 <= port <= 65535:
                raise StartupError(f"fetch.ports: {port} is not a port; media ports are numbers from 1 to 65535.")
        return cls(
            schemes=frozenset({"https", "http"} if http_allowed else {"https"}),
            networks=tuple(_network(text) for text in private_networks),
            hosts=HostList.of(hosts, setting="fetch.hosts"),
            only_hosts=HostList.of(only_hosts, setting="fetch.only_hosts", addresses=True),
            ports=frozenset({80, 443, *ports}),
            file_root=_file_root(file_root) if file_root else "",
        )

    def parse(self, url: str) -> MediaUrl:
        """Parse once, strictly; judge scheme, port, and the host as far as it needs no resolving.

        Raises UrlInvalid when the text could mean different hosts to different readers, UrlRefused when the policy
        forbids it.
        """
        scheme, rest = split_scheme(url)
        if scheme == "file" and self.file_root:
            return self._parse_file(rest)
        if scheme not in self.schemes:
            raise UrlRefused(f"Media URLs may use {self._schemes_text()} only (rule: scheme).")
        parsed = parse_web(scheme, rest)
        if parsed.port not in self.ports:
            listed = ", ".join(map(str, sorted(self.ports)))
            raise UrlRefused(f"Media URLs may use these ports only: {listed} (rule: port).")
        if self.only_hosts and parsed.host not in self.only_hosts:
            raise UrlRefused(
                "The media URL's host is not one that this server may fetch from (rule: host).", detail=parsed.host
            )
        if parsed.address is not None:
            self.check_address(parsed, parsed.address)
        else:
            self._check_name(parsed)
        return parsed

    def follow(self, url: MediaUrl, location: str) -> MediaUrl:
        """Return where a redirect from ``url`` leads; the whole policy applies to it, and https never falls back to
        http. No redirect leads to a file.
        """
        location = location.partition("#")[0]
        if has_scheme(location):
            next_url = self.parse(location)
        elif location.startswith("//"):
            next_url = self.parse(f"{url.scheme}:{location}")
        else:
            check_characters(location)
            # Only the path is resolved, by our own rules: it begins with a slash, so the authority stays what it was.
            next_url = self.parse(f"{url.scheme}://{url.authority}{resolve_target(url.target, location)}")
        if next_url.scheme == "file":
            raise UrlRefused("The media URL redirects to a local file (rule: scheme).")
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

    def check_proxied(self, url: MediaUrl) -> None:
        """Judge a name that a proxy will resolve: what only a local network knows needs ``hosts``. Raises UrlRefused."""
        if url.address is None and is_local_name(url.host) and url.host not in self.hosts:
            raise UrlRefused("The media URL's host is a name of a local network (rule: local name).", detail=url.host)

    def _parse_file(self, rest: str) -> MediaUrl:
        path = parse_file(rest)
        steps = [step for step in path.split("/") if step]
        root = [step for step in self.file_root.split("/") if step]
        # Steps up are refused, not resolved: what a name like that means depends on the links it passes.
        if "." in steps or ".." in steps or steps[: len(root)] != root or len(steps) == len(root):
            raise UrlRefused("The file URL leads out of the directory that may be read (rule: file root).")
        return MediaUrl("file", "", 0, "/" + "/".join(steps[len(root) :]))

    def _opened(self, url: MediaUrl, ip: IpAddress, rule: str) -> bool:
        # An IPv4 network opens its addresses in the mapped spelling too, which is the same connection. The others (NAT64, 6to4 …) go by
        # routes of their own, and are opened by an IPv6 network only.
        plain = (ip.ipv4_mapped or ip) if ip.version == 6 else ip
        within = [network for network in self.networks if _inside(ip, network) or _inside(plain, network)]
        if rule == METADATA:
            return any(network.num_addresses == 1 for network in within)
        return bool(within) or url.host in self.hosts

    def _check_name(self, url: MediaUrl) -> None:
        """Refuse names that are local or metadata by convention, whatever a resolver makes of them."""
        if url.host == "localhost" or url.host.endswith(".localhost"):
            self.check_address(url, IPv4Address("127.0.0.1"))
        if url.host in _METADATA_NAMES:
            self.check_address(url, IPv4Address("169.254.169.254"))

    def _schemes_text(self) -> str:
        names = sorted(self.schemes, reverse=True) + (["file"] if self.file_root else []) + ["data"]
        return ", ".join(names[:-1]) + " and " + names[-1]


def _inside(ip: IpAddress, network: IPv4Network | IPv6Network) -> bool:
    return ip.version == network.version and ip in network


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip())
    except ValueError:
        raise StartupError(
            f"fetch.private_networks: {text!r} is not a network; write it like 10.0.0.0/8 or fd00::/8."
        ) from None


def _file_root(text: str) -> str:
    root = os.path.normpath(text)
    if not os.path.isabs(root) or root.strip("/") == "" or not os.path.isdir(root):
        raise StartupError(f"fetch.file_root: {text!r} must be the absolute path of a directory, and not of all files.")
    return root
