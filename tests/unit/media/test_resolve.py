"""The system's resolver: addresses as values, errors as OSError, threads given back."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from foveate.media.resolve import SystemResolver


async def test_resolves_without_duplicates() -> None:
    resolver = SystemResolver()
    found = await resolver.resolve("localhost", 80)
    assert ip_address("127.0.0.1") in found
    assert len(found) == len(set(found))
    await resolver.aclose()


async def test_scopes_and_failures_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1%eth0", 80, 0, 2))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: answers)
    resolver = SystemResolver(threads=1)
    assert await resolver.resolve("h.test", 80) == [ip_address("fe80::1")]

    def fail(*_args: object, **_options: object) -> None:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OSError, match="no such name"):
        await resolver.resolve("h.test", 80)
    await resolver.aclose()
    with pytest.raises(RuntimeError):
        await resolver.resolve("h.test", 80)
