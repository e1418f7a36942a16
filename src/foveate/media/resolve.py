"""Host names to addresses, off the event loop and with a bound on how many lookups run at once."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Protocol

from foveate.media.addresses import IpAddress


class Resolver(Protocol):
    """Answers one question a hop; whoever asks judges every address of the answer and connects to no other."""

    async def resolve(self, host: str, port: int) -> list[IpAddress]:
        """Return the host's addresses in the order to try them, without duplicates. Raises OSError when it has none."""
        ...

    async def aclose(self) -> None:
        """Give the resolver's threads back."""
        ...


class SystemResolver:
    """The operating system's resolver, in threads of its own: slow name servers must not use up the event loop's
    shared executor.
    """

    def __init__(self, *, threads: int = 16) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="media-dns")

    async def resolve(self, host: str, port: int) -> list[IpAddress]:
        """Return the addresses of ``host``. A cancelled lookup ends in its thread; one that has not begun never
        begins.
        """
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._executor, _look_up, host, port)
        return list(dict.fromkeys(map(ip_address, answers)))

    async def aclose(self) -> None:
        """Let running lookups end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [str(address[0]).partition("%")[0] for *_, address in answers]
