"""Group A, spellings: URLs that parsers disagree about, and the many ways to write one address.

``guarded`` may fetch http from 127.0.0.3. On the same port, traps listen at loopback addresses that it may not fetch from: whatever slips
through the policy connects to one of them, and fails its test.
"""

from __future__ import annotations

import json

import httpx
import pytest
from tests.blackbox.field_cases.conftest import CHAT, PICTURE
from tests.blackbox.field_cases.listeners import Trap
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.origins import Origin, redirect
from tests.blackbox.pictures import CASES, ask
from tests.blackbox.replies import content

REFUSED = Right(400, "media_url_refused")
INVALID = Right(400, "invalid_media_url")
PART = "messages[0].content[0].image_url"
P = "{port}"
"""Stands for the port that ``guarded`` may fetch from and the traps listen on."""


@field_case(3, "a redirect to a URL that parsers disagree about", INVALID)
@pytest.mark.parametrize(
    "target", [f"http://127.0.0.1:{P}\\@127.0.0.3:{P}/", f"http://127.0.0.3:{P}@127.0.0.1:{P}/", f"http://127.1:{P}/"]
)
def test_hops_are_parsed_as_strictly(
    http: httpx.Client, media: Origin, unreached: Trap, right: Right, target: str
) -> None:
    media.pages["/doubtful"] = redirect(target.format(port=media.port))
    right.check(http.post(CHAT, json=ask(f"{media.url}/doubtful")), param=PART)


RECORDED = [json.loads(line) for line in (CASES / "case003_url_policy.jsonl").read_text().splitlines()]
"""58 spellings. Those from ``ALLOWED`` on are for a host list."""
ALLOWED = 54
BY_ADDRESS = (
    *("http://127.0.0.1#@allowed.example/", "HTTP://LOCALHOST/", "http://localhost./", "http://db.localhost/"),
    *("http://127.0.0.1./", "http://168.63.129.16/", "http://100.100.100.200/", "http://metadata.google.internal./"),
    *("file:///etc/passwd", "file:///allowed/%2e%2e/etc/passwd", "gopher://127.0.0.1:6379/_INFO"),
)
"""Recorded URLs that can be parsed without doubt, and are refused for where they lead."""


def of_recorded(url: str) -> Right:
    embedded = url.startswith("http://[") and "%25" not in url and "].all" not in url
    return REFUSED if embedded or url in BY_ADDRESS else INVALID


@pytest.mark.parametrize(
    ("url", "right"),
    [
        pytest.param(
            line["url"],
            of_recorded(line["url"]),
            marks=field_case(3, "spellings in doubt, of `case003_url_policy.jsonl`", INVALID),
        )
        if of_recorded(line["url"]) is INVALID
        else pytest.param(
            line["url"],
            REFUSED,
            marks=field_case(3, "clear spellings of forbidden addresses, of the same file", REFUSED),
        )
        for line in RECORDED[:ALLOWED]
    ],
)
def test_recorded_spellings(http: httpx.Client, unreached: Trap, url: str, right: Right) -> None:
    right.check(http.post(CHAT, json=ask(url)), param=PART)


@field_case(
    3,
    "backslash, at-sign, tab, newline, space, control characters, Unicode digits and dots, with the traps' port",
    INVALID,
)
@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:{P}\\@127.0.0.3:{P}/",
        f"http://127.0.0.3:{P}\\@127.0.0.1:{P}/",
        f"http://127.0.0.3:{P}@127.0.0.1:{P}/",
        f"http://127.0.0.1\t:{P}/",
        f"http://127.0.0.1:{P}\n/",
        f"http://127.0.0.1 :{P}/",
        f"http://127.0.0.1\x00:{P}/",
        f"http://127.0.0.1\x7f:{P}/",
        f"http://①②⑦.⓪.⓪.①:{P}/",
        f"http://127。0。0。1:{P}/",
        f"http://127.0.0.1%2f@127.0.0.3:{P}/",
        f"http://user:word@127.0.0.1:{P}/",
        f"http://@127.0.0.1:{P}/",
        f"http:127.0.0.1:{P}/",
        f"http:///127.0.0.1:{P}/",
        f"http://[::1%25lo]:{P}/",
        f"http://[::1:{P}/",
        f"http://::1:{P}/",
    ],
)
def test_spellings_in_doubt(http: httpx.Client, unreached: Trap, right: Right, url: str) -> None:
    right.check(http.post(CHAT, json=ask(url.format(port=unreached.port))), param=PART)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param(f"http://[{address}]:{P}/", marks=field_case(number, sent, REFUSED), id=address)
        for number, sent, addresses in (
            (
                4,
                "IPv4-mapped IPv6, dotted and hex",
                (
                    "::ffff:127.0.0.1",
                    "::ffff:7f00:1",
                    "::FFFF:7F00:1",
                    "0:0:0:0:0:ffff:127.0.0.1",
                    "::ffff:a9fe:a9fe",
                    "::ffff:10.0.0.1",
                ),
            ),
            (
                5,
                "NAT64 (both prefixes), 6to4, Teredo, compatible, ISATAP, site-local",
                (
                    "64:ff9b::a9fe:a9fe",
                    "64:ff9b::7f00:1",
                    "64:ff9b:1::a9fe:a9fe",
                    "2002:7f00:1::",
                    "2002:a9fe:a9fe::1",
                    "2001:0:1:2:3:4:80ff:fffe",
                    "::127.0.0.1",
                    "::7f00:1",
                    "::5efe:7f00:1",
                    "fe80::5efe:a00:1",
                    "2001:470::5efe:a00:1",
                    "fec0::1",
                ),
            ),
        )
        for address in addresses
    ],
)
def test_addresses_inside_addresses(http: httpx.Client, unreached: Trap, right: Right, url: str) -> None:
    right.check(http.post(CHAT, json=ask(url.format(port=unreached.port))), param=PART)


@field_case(4, "the mapped form of an address that the operator allows", ANSWERED)
def test_mapped_form_of_an_allowed_address(http: httpx.Client, media: Origin) -> None:
    assert content(http.post(CHAT, json=ask(f"http://[::ffff:127.0.0.3]:{media.port}{PICTURE}"))) == "A red circle."


@field_case(6, "`2130706433`, `0x7f000001`, `0177.0.0.1`, `127.1`, `0`, `169.254.43518` and their kin", INVALID)
@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0X7F.0.0.1",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "0",
        "169.254.43518",
        "2852039166",
        "0x7f.1",
        "127.0.0.01",
        "127.0.0.256",
        "1.2.3.4.5",
        "00000177.0.0.1",
        "127.0.0.1.0",
    ],
)
def test_numbers_as_hosts(http: httpx.Client, unreached: Trap, right: Right, host: str) -> None:
    right.check(http.post(CHAT, json=ask(f"http://{host}:{unreached.port}/")), param=PART)


@field_case(7, "`localhost.`, `127.0.0.1.`, `db.localhost`, `metadata.google.internal.`, in any letter case", REFUSED)
@pytest.mark.parametrize(
    "host",
    [
        "localhost.",
        "LOCALHOST",
        "127.0.0.1.",
        "169.254.169.254.",
        "db.localhost",
        "db.localhost.",
        "metadata.google.internal.",
    ],
)
def test_trailing_dots_and_names_of_this_machine(http: httpx.Client, unreached: Trap, right: Right, host: str) -> None:
    right.check(http.post(CHAT, json=ask(f"http://{host}:{unreached.port}/")), param=PART)


@field_case(11, "`faß.de` and a homograph of an allowed host, not written as `xn--`", INVALID)
@pytest.mark.parametrize("host", ["faß.de", "аllowed.example", "ａllowed.example", "allowed。example"])
def test_names_that_are_not_ascii(http: httpx.Client, unreached: Trap, right: Right, host: str) -> None:
    right.check(http.post(CHAT, json=ask(f"http://{host}:{unreached.port}/")), param=PART)
