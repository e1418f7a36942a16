"""Which IP addresses are public. Pure: no I/O, no settings, no names.

An address is public when it is globally routable unicast *and* every IPv4 address that it spells inside (mapped,
compatible, translated, NAT64, 6to4, Teredo, ISATAP) is too. The standard library's ``is_global`` is not enough:
Python 3.11 calls ``64:ff9b::a9fe:a9fe``, ``2002:7f00:1::``, ``::127.0.0.1`` and ``fec0::1`` global. For IPv6 nothing
outside 2000::/3 is public, whatever gets assigned later.

Sources: the IANA special-purpose address registries (RFC 6890 and its updates), RFC 4291, 6052, 8215, 3056, 4380,
5214; the metadata addresses are those the cloud providers document.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

IpAddress = IPv4Address | IPv6Address

METADATA: Final = "metadata"
"""The rule of instance metadata and platform control services; they hand out credentials."""

_METADATA_ADDRESSES: Final[frozenset[IpAddress]] = frozenset(
    [
        IPv4Address("169.254.169.254"),  # AWS, Google, Azure, OpenStack, DigitalOcean, Oracle
        IPv4Address("169.254.170.2"),  # AWS ECS task credentials
        IPv4Address("169.254.170.23"),  # AWS EKS pod identity
        IPv4Address("168.63.129.16"),  # Azure WireServer: an address that is otherwise public
        IPv4Address("100.100.100.200"),  # Alibaba
        IPv4Address("192.0.0.192"),  # Oracle classic
        IPv4Address("169.254.0.23"),  # Tencent
        IPv4Address("169.254.42.42"),  # Scaleway
        IPv6Address("fd00:ec2::254"),  # AWS
        IPv6Address("fd00:ec2::23"),  # AWS EKS pod identity
        IPv6Address("fd20:ce::254"),  # Google
        IPv6Address("fd00:42::42"),  # Scaleway
        IPv6Address("fd00:c1::a9fe:a9fe"),  # Oracle
    ]
)

_V4_RULES: Final = tuple(
    (IPv4Network(network), rule)
    for network, rule in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)

_V6_RULES: Final = tuple(
    (IPv6Network(network), rule)
    for network, rule in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("64:ff9b:1::/48", "local-use NAT64"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("2001:2::/48", "benchmarking"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
        ("2001::/23", "reserved"),
    )
)

_V6_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_COMPATIBLE: Final = IPv6Network("::/96")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_TRANSLATED: Final = IPv6Network("::ffff:0:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL: Final = IPv6Network("64:ff9b:1::/48")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")
_ISATAP_IDENTIFIERS: Final = (0x0000_5EFE, 0x0200_5EFE)
_REACHED_THROUGH_IPV4: Final = (_MAPPED, _NAT64, _SIX_TO_FOUR, _TEREDO)
"""Spellings whose packets really go to the inner IPv4 address, so the inner address alone decides."""


def refusal(ip: IpAddress) -> str | None:
    """Return the name of the rule that makes ``ip`` non-public, ``None`` when it is public.

    ``metadata`` wins over every other rule; an embedded IPv4 address is judged before the address that carries it.
    """
    if ip in _METADATA_ADDRESSES:
        return METADATA
    if isinstance(ip, IPv4Address):
        return _first_rule(ip, _V4_RULES)
    if ip in (IPv6Address("::"), IPv6Address("::1")):
        return _first_rule(ip, _V6_RULES)
    inner_rules = [rule for inner in embedded(ip) if (rule := refusal(inner)) is not None]
    if METADATA in inner_rules:
        return METADATA
    if inner_rules and ip not in _NAT64_LOCAL:  # of those several are spelled, and which one is meant is not known
        return inner_rules[0]
    if any(ip in network for network in _REACHED_THROUGH_IPV4):
        return None
    rule = _first_rule(ip, _V6_RULES)
    return rule if rule is not None or ip in _V6_GLOBAL_UNICAST else "reserved"


def embedded(ip: IpAddress) -> tuple[IPv4Address, ...]:
    """Return every IPv4 address that ``ip`` spells inside, outermost spelling first; none for an IPv4 address."""
    if isinstance(ip, IPv4Address):
        return ()
    bits = int(ip)
    found: list[int] = []
    if any(ip in network for network in (_MAPPED, _COMPATIBLE, _TRANSLATED, _NAT64, _NAT64_LOCAL)):
        found.append(bits)
    if ip in _NAT64_LOCAL:
        found.extend(_translated(bits))
    if ip in _SIX_TO_FOUR:
        found.append(bits >> 80)
    if ip in _TEREDO:
        found.append(~bits)  # the client's address is stored inverted (RFC 4380, section 4)
        found.append(bits >> 64)  # the Teredo server's
    if (bits >> 32) & 0xFFFF_FFFF in _ISATAP_IDENTIFIERS:
        found.append(bits)
    return tuple(IPv4Address(value & 0xFFFF_FFFF) for value in found)


def _translated(bits: int) -> list[int]:
    """Return what a translator's prefix of 48, 56 or 64 bits would make of an address; bits 64 to 71 are left out
    (RFC 6052, section 2.2).
    """
    without_octet = (bits >> 64) << 56 | bits & 2**56 - 1
    return [without_octet >> 120 - prefix - 32 for prefix in (48, 56, 64)]


def _first_rule(
    ip: IpAddress, rules: tuple[tuple[IPv4Network, str], ...] | tuple[tuple[IPv6Network, str], ...]
) -> str | None:
    return next((rule for network, rule in rules if ip in network), None)
