"""Host names to addresses: through the operating system, or by asking name servers that an operator names.

Nothing is kept: one question a hop, so that the addresses that were judged are the addresses connected to. Does not
cover: which addresses are acceptable (:mod:`foveate.media.policy`), and how long a lookup may take (the fetcher's).
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, Protocol

import dns.asyncresolver
import dns.exception
import dns.name
import dns.nameserver
import dns.resolver

from foveate.core.errors import StartupError
from foveate.media.addresses import IpAddress
from foveate.media.gates import Gates

_SERVER: Final = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{1,5}))?|([0-9.]+)(?::([0-9]{1,5}))?|([0-9A-Fa-f:.]+)")
_TRY_SECONDS: Final = 1.5
"""How long one name server is waited for before the next, or the same again, is asked."""

_LOOKUP_SECONDS_MAX: Final = 300.0
"""More than the fetcher ever waits: its own limit is the one that counts."""

_WAITING_MAX: Final = 8192
"""More lookups than ever wait: each is part of a transfer, of which fewer may run."""


class Resolver(Protocol):
    """Answers one question a hop; whoever asks judges every address of the answer and connects to no other."""

    async def resolve(self, host: str, port: int, *, tenant: str = "") -> list[IpAddress]:
        """Return the host's addresses in the order to try them, without duplicates, for ``tenant`` (empty: the server's
        own question). Raises OSError when it has none.
        """
        ...

    async def aclose(self) -> None:
        """Give the resolver's threads back."""
        ...


class SystemResolver:
    """The operating system's resolver, in threads of its own: slow name servers must not use up the event loop's
    shared executor.

    The C library cannot be told to stop, so a lookup that nobody waits for any more still has its thread. Therefore the
    names beneath one domain (two labels) have at most a quarter of the threads, and one tenant three quarters: a name
    server that never answers keeps neither everybody's names waiting nor another tenant's.
    """

    def __init__(self, *, threads: int = 64) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="media-dns")
        self._gates = Gates(
            total_max=threads,
            per_host_max=max(threads // 4, 1),
            per_tenant_max=max(threads - threads // 4, 1),
            waiting_max=_WAITING_MAX,
        )

    async def resolve(self, host: str, port: int, *, tenant: str = "") -> list[IpAddress]:
        """Return the addresses of ``host``. A cancelled lookup keeps its thread, and its place, until it ends; one that
        still waits for a thread never begins.
        """
        loop = asyncio.get_running_loop()
        domain = ".".join(host.rsplit(".", 2)[-2:])
        await self._gates.enter(domain, tenant)

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop was closed while the thread was still busy: nobody waits for it
                loop.call_soon_threadsafe(self._gates.leave, domain, tenant)

        try:
            lookup = self._executor.submit(_look_up, host, port)
        except BaseException:
            self._gates.leave(domain, tenant)
            raise
        lookup.add_done_callback(ended)
        answers = await asyncio.wrap_future(lookup)
        return list(dict.fromkeys(map(ip_address, answers)))

    async def aclose(self) -> None:
        """Let running lookups end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class ServerResolver:
    """Asks the given name servers, and neither ``/etc/hosts`` nor ``/etc/resolv.conf``."""

    def __init__(self, servers: Sequence[tuple[str, int]]) -> None:
        self._resolver = dns.asyncresolver.Resolver(configure=False)
        self._resolver.nameservers = [dns.nameserver.Do53Nameserver(address, port) for address, port in servers]
        self._resolver.timeout = _TRY_SECONDS
        self._resolver.lifetime = _LOOKUP_SECONDS_MAX

    async def resolve(self, host: str, port: int, *, tenant: str = "") -> list[IpAddress]:
        """Return the IPv4 and then the IPv6 addresses of ``host``. Raises OSError unless both questions are answered:
        an address that is not known cannot be judged.
        """
        found: dict[IpAddress, None] = {}
        for answer in await asyncio.gather(self._ask(host, "A"), self._ask(host, "AAAA"), return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            found.update(dict.fromkeys(map(ip_address, answer)))
        if not found:
            raise OSError("no address")
        return list(found)

    async def aclose(self) -> None:
        """Nothing to give back: every question has a socket of its own."""

    async def _ask(self, host: str, kind: str) -> list[str]:
        try:
            answer = await self._resolver.resolve(dns.name.from_text(host), kind, search=False)
        except (dns.resolver.NoAnswer, dns.resolver.NXDOMAIN):
            return []
        except dns.exception.DNSException as error:
            raise OSError(type(error).__name__) from None
        return [str(record) for record in answer]


def parse_servers(texts: Iterable[str]) -> list[tuple[str, int]]:
    """Read ``address``, ``address:port`` and ``[address]:port``. Raises StartupError that names the bad one."""
    found = []
    for text in texts:
        match = _SERVER.fullmatch(text.strip())
        try:
            if match is None:
                raise ValueError(text)
            address = str(ip_address(match.group(1) or match.group(3) or match.group(5)))
            port = int(match.group(2) or match.group(4) or 53)
            if not 1 <= port <= 65535:
                raise ValueError(text)
        except ValueError:
            raise StartupError(
                f"fetch.dns_servers: {text!r} is not a name server; write 10.0.0.53, 10.0.0.53:5353 or [fd00::53]:53."
            ) from None
        found.append((address, port))
    return found


def _look_up(host: str, port: int) -> list[str]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [str(address[0]).partition("%")[0] for *_, address in answers]
