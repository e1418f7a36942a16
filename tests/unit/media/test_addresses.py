"""Every spelling of a non-public address is recognised, and public ones stay public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.media.addresses import METADATA, embedded, refusal

NOT_PUBLIC = {
    "0.0.0.0": "unspecified",
    "0.1.2.3": "unspecified",
    "10.0.0.1": "private",
    "100.64.0.1": "carrier-grade NAT",
    "100.127.255.255": "carrier-grade NAT",
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "169.254.1.1": "link-local",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.0.0.1": "reserved",
    "192.0.2.1": "documentation",
    "192.88.99.1": "reserved",
    "192.168.255.255": "private",
    "198.18.0.1": "benchmarking",
    "198.19.255.255": "benchmarking",
    "198.51.100.7": "documentation",
    "203.0.113.7": "documentation",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "169.254.169.254": METADATA,
    "168.63.129.16": METADATA,
    "100.100.100.200": METADATA,
    "192.0.0.192": METADATA,
    "::": "unspecified",
    "::1": "loopback",
    "fc00::1": "private",
    "fd12::1": "private",
    "fe80::1": "link-local",
    "fec0::1": "site-local",
    "ff02::1": "multicast",
    "2001:db8::1": "documentation",
    "3fff::1": "documentation",
    "2001:2::1": "benchmarking",
    "2001:10::1": "reserved",
    "2001:20::1": "reserved",
    "fd00:ec2::254": METADATA,
    "fd20:ce::254": METADATA,
    "fd00:c1::a9fe:a9fe": METADATA,
    "169.254.0.23": METADATA,
    "169.254.42.42": METADATA,
    "4000::1": "reserved",
    "5f00::1": "reserved",
    "100::1": "reserved",
    "64:ff9b:1::808:808": "local-use NAT64",
    # An IPv4 address inside an IPv6 one.
    "::ffff:127.0.0.1": "loopback",
    "::ffff:7f00:1": "loopback",
    "::ffff:a9fe:a9fe": METADATA,
    "::ffff:10.0.0.1": "private",
    "::127.0.0.1": "loopback",
    "::ffff:0:10.0.0.1": "private",
    "64:ff9b::a9fe:a9fe": METADATA,
    "64:ff9b::7f00:1": "loopback",
    "64:ff9b:1::a9fe:a9fe": METADATA,
    "64:ff9b:1:a9fe:a9:fe00::": METADATA,  # behind a prefix of 48 bits (RFC 6052)
    "64:ff9b:1:5a9:fe:a9fe::": METADATA,  # of 56
    "64:ff9b:1:5:a9:fea9:fe00:0": METADATA,  # of 64
    "64:ff9b:1::7f00:1": "local-use NAT64",
    "2002:7f00:1::": "loopback",
    "2002:a00:1::1": "private",
    "2001:0:4136:e378:8000:63bf:f5ff:fffe": "private",  # Teredo, client 10.0.0.1
    "2001:0:a00:1::f7f7:f7f7": "private",  # Teredo, server 10.0.0.1
    "::5efe:7f00:1": "loopback",
    "2606:4700::5efe:7f00:1": "loopback",  # ISATAP under a public prefix
    "2606:4700::200:5efe:a00:1": "private",
}

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450::1",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]


@pytest.mark.parametrize(("text", "rule"), NOT_PUBLIC.items())
def test_names_the_rule_of_a_non_public_address(text: str, rule: str) -> None:
    assert refusal(ip_address(text)) == rule


@pytest.mark.parametrize("text", PUBLIC)
def test_lets_public_addresses_through(text: str) -> None:
    assert refusal(ip_address(text)) is None


@given(st.ip_addresses(v=4))
def test_agrees_with_the_standard_library_where_that_is_stricter(ip: IPv4Address) -> None:
    if not ip.is_global or ip.is_multicast or ip.is_reserved:
        assert refusal(ip) is not None


@given(
    st.ip_addresses(v=4), st.sampled_from(["mapped", "nat64", "6to4", "teredo", "isatap", "compatible", "translated"])
)
def test_no_spelling_hides_a_refused_inner_address(inner: IPv4Address, spelling: str) -> None:
    bits = int(inner)
    outer = {
        "mapped": 0xFFFF << 32 | bits,
        "nat64": 0x64FF9B << 96 | bits,
        "6to4": 0x2002 << 112 | bits << 80 | 1,
        "teredo": 0x20010000 << 96 | int(IPv4Address("8.8.8.8")) << 64 | (~bits & 0xFFFF_FFFF),
        "isatap": 0x26064700 << 96 | 0x5EFE << 32 | bits,
        "compatible": bits,
        "translated": 0xFFFF << 48 | bits,
    }[spelling]
    ip = IPv6Address(outer)
    if refusal(inner) is not None:
        assert refusal(ip) is not None
        assert spelling == "compatible" or inner in embedded(ip)


@given(st.ip_addresses(v=6))
def test_nothing_outside_global_unicast_is_public_but_translations(ip: IPv6Address) -> None:
    if refusal(ip) is None:
        assert int(ip) >> 125 == 1 or ip.ipv4_mapped is not None or int(ip) >> 32 == 0x64FF9B << 64
