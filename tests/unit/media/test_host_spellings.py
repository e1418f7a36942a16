"""Many thousand spellings of hosts: nothing that connects to a non-public address passes the policy.

The oracle is independent of ours: what a spelling connects to is asked of the C library (``inet_aton`` and
``getaddrinfo``) and of the standard library's address types; whether that is public is judged by ``ipaddress`` and by
an extraction of embedded IPv4 addresses that is written here, by the text of the RFCs.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from tests.unit.media.sites import Buffer, Site, answering, fetcher_for

from foveate.core.errors import FoveateError, UrlInvalid, UrlRefused
from foveate.media.fetch import FetchLimits
from foveate.media.policy import UrlPolicy

SPELLINGS = 24_000
Ip = IPv4Address | IPv6Address

# --------------------------------------------------------------------------------------------------------- the oracle

SPECIAL = [
    ip_network(text)
    for text in (
        "192.0.0.0/24", "192.88.99.0/24", "168.63.129.16", "100.64.0.0/10", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
        "fec0::/10", "64:ff9b:1::/48", "100::/64", "2001:db8::/32", "3fff::/20", "5f00::/16",
    )
]  # fmt: skip


def inner(ip: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address spells."""
    octets = ip.packed
    found = []
    if octets[:10] == bytes(10) and octets[10:12] in (b"\0\0", b"\xff\xff"):  # RFC 4291, 2.5.5
        found.append(octets[12:])
    if octets[:8] == bytes(8) and octets[8:12] == b"\xff\xff\0\0":  # RFC 2765
        found.append(octets[12:])
    if octets[:4] == b"\0\x64\xff\x9b" and octets[4:12] == bytes(8):  # RFC 6052
        found.append(octets[12:])
    if octets[:2] == b"\x20\x02":  # RFC 3056
        found.append(octets[2:6])
    if octets[:4] == b"\x20\x01\0\0":  # RFC 4380
        found.append(octets[4:8])
        found.append(bytes(octet ^ 0xFF for octet in octets[12:]))
    if octets[8:12] in (b"\0\0\x5e\xfe", b"\x02\0\x5e\xfe"):  # RFC 5214
        found.append(octets[12:])
    return [IPv4Address(value) for value in found]


def is_public(ip: Ip) -> bool:
    if any(ip in network for network in SPECIAL if network.version == ip.version):
        return False
    if isinstance(ip, IPv4Address):
        return ip.is_global and not ip.is_multicast and not ip.is_reserved
    if any(not is_public(one) for one in inner(ip)):
        return False
    carriers = ip.ipv4_mapped is not None or ip in ip_network("64:ff9b::/96") or ip.packed[:4] == b"\x20\x01\0\0"
    return bool(carriers or (ip in ip_network("2000::/3") and ip.is_global and not ip.is_multicast))


def what_the_system_makes_of(host: str) -> set[Ip]:
    """Every address that the C library sees in a text, without asking the network."""
    found: set[Ip] = set()
    with contextlib.suppress(OSError, UnicodeError, ValueError):
        found.add(IPv4Address(socket.inet_aton(host)))
    with contextlib.suppress(OSError, UnicodeError, ValueError):
        for *_, address in socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST):
            found.add(ip_address(str(address[0]).partition("%")[0]))
    return found


# ------------------------------------------------------------------------------------------------------ the spellings

TARGETS = [
    "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.5.4", "172.31.255.255", "192.168.1.1", "169.254.169.254", "0.0.0.0",
    "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255",
    "192.0.2.1", "8.8.8.8", "1.1.1.1", "93.184.216.34",
]  # fmt: skip
V6_TARGETS = [
    "::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "100::1", "3fff::1",
    "5f00::1", "2606:4700:4700::1111",
]  # fmt: skip
DIGITS = [chr(zero + d) for zero in (0xFF10, 0x0660, 0x06F0, 0x0966, 0x1D7CE, 0x1D7D8) for d in range(10)]
CIRCLED = "⓪①②③④⑤⑥⑦⑧⑨"
DOTS = "。．｡․。"
NAMES = [
    "localhost", "LOCALHOST", "db.localhost", "metadata.google.internal", "metadata", "allowed.example", "img.test",
    "ⓛocalhost", "loc%61lhost", "localhost.localdomain", "ip6-localhost", "127.0.0.1.sslip.io", "xn--fa-hia.de",
]  # fmt: skip


def target(rng: random.Random) -> int:
    """An IPv4 address: one of the notable ones, or any."""
    return int(IPv4Address(rng.choice(TARGETS))) if rng.random() < 0.5 else rng.getrandbits(32)


def number(rng: random.Random, value: int) -> str:
    """A number as C reads it."""
    return rng.choice(
        [str, lambda v: f"{v:#x}", lambda v: f"{v:#X}", lambda v: f"0{v:o}", lambda v: f"0x{v:0{rng.randrange(1, 12)}x}",
         lambda v: f"{'0' * rng.randrange(1, 4)}{v:o}", lambda v: f"{v:0{rng.randrange(1, 5)}d}"]
    )(value)  # fmt: skip


def v4(rng: random.Random) -> str:
    """An IPv4 address in one of the spellings of inet_aton: one to four parts, each in a radix of its own."""
    bits = target(rng)
    if rng.random() < 0.05:
        bits += 2**32  # some readers wrap around
    parts = rng.randrange(1, 5)
    leading = [(bits >> shift) & 0xFF for shift in (24, 16, 8)[: parts - 1]]
    last = bits & (2 ** (8 * (5 - parts)) - 1) if parts > 1 else bits
    return ".".join(number(rng, value) for value in (*leading, last))


def dotted(rng: random.Random) -> str:
    return str(IPv4Address(target(rng)))


def v6_value(rng: random.Random) -> IPv6Address:
    """An IPv6 address that may embed an IPv4 one, in any of the families."""
    if rng.random() < 0.2:
        return IPv6Address(rng.choice(V6_TARGETS))
    bits = target(rng)
    public = int(IPv4Address("8.8.8.8"))
    prefix = rng.choice([0x2606_4700, 0x2A00_1450, 0xFE80_0000, 0])
    embeddings = [
        bits,
        0xFFFF << 32 | bits,
        0xFFFF << 48 | bits,
        0x64FF9B << 96 | bits,
        0x64FF9B0001 << 80 | bits,
        0x2002 << 112 | bits << 80 | rng.randrange(2),
        0x20010000 << 96 | public << 64 | (~bits & 0xFFFF_FFFF),
        0x20010000 << 96 | bits << 64 | (~public & 0xFFFF_FFFF),
        prefix << 96 | 0x5EFE << 32 | bits,
        prefix << 96 | 0x0200_5EFE << 32 | bits,
    ]
    return IPv6Address(rng.choice(embeddings))


def v6(rng: random.Random) -> str:
    ip = v6_value(rng)
    quad = str(IPv4Address(int(ip) & 0xFFFF_FFFF))
    head = ":".join(f"{group:x}" for group in struct.unpack("!8H", ip.packed)[:6])
    text = rng.choice(
        [str(ip), ip.exploded, str(ip).upper(), f"{head}:{quad}", f"{head.replace('0:0:0', ':', 1)}:{quad}"]
    )
    zone = rng.choice([""] * 12 + ["%25eth0", "%eth0", "%1", "%25", "%lo"])
    return rng.choice(
        [f"[{text}{zone}]"] * 15 + [text, f"[{text}", f"{text}]", f"[[{text}]]", f"[v1.{text}]", f"[{text}].example"]
    )


def unicode_digits(rng: random.Random) -> str:
    text = rng.choice([v4, dotted])(rng)
    swap: Callable[[str], str] = lambda c: rng.choice([CIRCLED[int(c)], *DIGITS[int(c) :: 10]])  # noqa: E731
    share = rng.random()
    text = "".join(swap(c) if c.isdigit() and rng.random() < share else c for c in text)
    return "".join(rng.choice(DOTS) if c == "." and rng.random() < 0.5 else c for c in text)


def percent_encoded(rng: random.Random) -> str:
    text = rng.choice([v4, dotted])(rng)
    return "".join(f"%{ord(c):02x}" if rng.random() < 0.4 else c for c in text)


def name(rng: random.Random) -> str:
    labels = ["".join(rng.choices("abcxX019-_", k=rng.randrange(1, 8))) for _ in range(rng.randrange(1, 4))]
    return rng.choice(NAMES) if rng.random() < 0.5 else ".".join(labels)


def around(rng: random.Random, host: str) -> str:
    """A host with what an attacker writes around it."""
    other = rng.choice(["allowed.example", "8.8.8.8", "127.0.0.1"])
    return rng.choice(
        [host] * 40
        + [host + ".", host + "..", "." + host, host.upper(), f"{host}\\@{other}", f"{other}\\@{host}", f"{other}@{host}",
           f"{host}@{other}", f"user:pw@{host}", f"{host}#@{other}", f"{host}%2f@{other}", f"{host}%00.{other}", f" {host}",
           f"{host}\t", f"{host}\n", f"{host}%09", f"{host}\u00ad", f"\u200b{host}", f"{host}/", f"{host}?", f"{host};{other}",
           f"{host},{other}", f"{host}\uff20{other}", f"{host}\uff0f{other}", f"{host}\uff0e", f"{host}%2e", f"{host}&{other}"]
    )  # fmt: skip


def spelling(rng: random.Random) -> str:
    kind = rng.choice([v4, v4, v4, dotted, dotted, v6, v6, v6, v6, unicode_digits, percent_encoded, name])
    port = rng.choice([""] * 20 + [":80", ":443", ":0", ":", ":99999", ":8\u0660", ":+80", ":080", ":80@8.8.8.8"])
    scheme = rng.choice(
        ["http://"] * 40 + ["https://", "HTTP://", "http:", "http:/", "http:///", "http:\\\\", "//", ""]
    )
    return f"{scheme}{around(rng, kind(rng))}{port}{rng.choice(['', '/', '/a.png', '?q'])}"


# ------------------------------------------------------------------------------------------------------------ the test


def spellings(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[spelling(rng)] = None
    return list(found)


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_that_connects_to_a_non_public_address_passes(seed: int) -> None:
    policy = UrlPolicy.of(http_allowed=True)
    outcomes: Counter[str] = Counter()
    for text in spellings(SPELLINGS // 2, seed):
        try:
            url = policy.parse(text)
        except UrlInvalid:
            outcomes["invalid"] += 1
            continue
        except UrlRefused:
            outcomes["refused"] += 1
            continue
        if url.address is not None:
            # The client connects to the parsed address; the system must not read another one in the same text.
            assert is_public(url.address), text
            assert what_the_system_makes_of(url.host) == {url.address}, text
            outcomes["public address"] += 1
        else:
            # A name is resolved, and each address of the answer judged. No resolver may see a number in it.
            for seen in what_the_system_makes_of(url.host):
                assert is_public(seen), text
            assert url.host.isascii()
            assert not url.host.replace(".", "").isdigit(), text
            outcomes["name"] += 1
    # The generator reaches every outcome, so that none of these checks is idle.
    assert min(outcomes[kind] for kind in ("invalid", "refused", "public address", "name")) >= 100, outcomes


def test_what_a_name_resolves_to_is_judged_like_an_address() -> None:
    """Every embedding, as the answer of a resolver: what passes is public to the oracle too."""
    rng = random.Random(3)
    policy = UrlPolicy.of(http_allowed=True)
    url = policy.parse("http://img.example/")
    passed = 0
    for _ in range(10_000):
        ip = rng.choice([v6_value(rng), IPv4Address(target(rng)), IPv6Address(rng.getrandbits(128)),
                         IPv4Address(rng.getrandbits(32))])  # fmt: skip
        try:
            policy.check_address(url, ip)
        except UrlRefused:
            continue
        assert is_public(ip), ip
        passed += 1
    assert passed > 1000


async def test_no_spelling_of_this_machine_reaches_a_listener_on_it() -> None:
    """The same with the real fetcher and the real system resolver: one port is open on every local address."""
    local = {"127.0.0.1", "127.8.8.8", "0.0.0.0"}
    rng = random.Random(4)
    hosts = {"localhost", "localhost.", "ip6-localhost", "localhost.localdomain", socket.gethostname()}
    while len(hosts) < 1500:
        host = around(rng, rng.choice([v4, v6, unicode_digits, percent_encoded])(rng))
        if any(str(ip) in local for ip in what_the_system_makes_of(host)) or "127" in host or "::1" in host:
            hosts.add(host)
    limits = FetchLimits(dns_seconds_max=0.5, connect_seconds_max=0.5, total_seconds_max=1.0)
    async with Site(answering()) as site, fetcher_for(site, private_networks=[], limits=limits) as fetcher:

        async def attempt(host: str) -> None:
            with pytest.raises(FoveateError):
                await fetcher.fetch(f"http://{host}:{site.port}/", Buffer())

        for some in range(0, len(hosts), 50):
            await asyncio.gather(*map(attempt, sorted(hosts)[some : some + 50]))
        assert site.connections == 0
        # The same listener answers as soon as its network is opened: it was there all the time.
        async with fetcher_for(site) as opened:
            await opened.fetch(f"http://localhost:{site.port}/", Buffer())
        assert site.connections == 1
