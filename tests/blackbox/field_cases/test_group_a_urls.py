"""Group A: where a URL may lead, by its address, port and scheme and by whoever redirects to it. How it is spelled, and names, have
files of their own.

``guarded`` may fetch http from 127.0.0.3 and from a few hosts. On the same port, traps listen at loopback addresses that
it may not fetch from: whatever slips through the policy connects to one of them, and fails its test.
"""

from __future__ import annotations

import threading

import httpx
import pytest
from tests.blackbox.failing_starts import failing
from tests.blackbox.field_cases.conftest import CHAT, PICTURE
from tests.blackbox.field_cases.listeners import Trap
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.origins import Origin, body, held, redirect
from tests.blackbox.pictures import ask, case, chat, data_url, encoded, image, noise, one, user
from tests.blackbox.replies import content
from tests.blackbox.server import Server

REFUSED = Right(400, "media_url_refused")
INVALID = Right(400, "invalid_media_url")
PART = "messages[0].content[0].image_url"
P = "{port}"
"""Stands for the port that ``guarded`` may fetch from and the traps listen on."""


@field_case(
    1,
    "at the defaults: `http://`, the metadata services, loopback, private networks, `https://[fd00:ec2::254]/`",
    REFUSED,
)
def test_defaults_are_safe(plain: Server, unreached: Trap, right: Right) -> None:
    with plain.client() as http:
        for url in (
            f"http://127.0.0.1:{unreached.port}/",
            f"https://127.0.0.1:{unreached.port}/",
            "http://169.254.169.254/latest/meta-data/",
            "https://169.254.169.254/latest/meta-data/",
            "https://100.100.100.200/",
            "https://168.63.129.16/",
            "https://192.0.0.192/",
            "https://[fd00:ec2::254]/",
            "https://10.0.0.1/",
            "https://172.16.0.1/",
            "https://192.168.1.1/",
            "https://100.64.0.1/",
            "https://localhost/",
        ):
            right.check(http.post(CHAT, json=ask(url)), param=PART)


@field_case(1, "with http allowed: the same, and the server's own port", REFUSED)
@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:{P}/",
        f"http://127.0.0.2:{P}/",
        f"http://[::1]:{P}/",
        f"http://localhost:{P}/",
        f"http://0.0.0.0:{P}/",
        f"http://[::]:{P}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://192.0.0.192/",
        "http://198.18.0.1/",
        "http://203.0.113.1/",
        "http://224.0.0.1/",
        "http://240.0.0.1/",
        "http://255.255.255.255/",
        "http://[fd00:ec2::254]/",
        "http://[fe80::1]/",
        "http://[ff02::1]/",
        "http://[2001:db8::1]/",
        "server",
    ],
)
def test_addresses_that_are_not_public(
    http: httpx.Client, guarded: Server, unreached: Trap, right: Right, url: str
) -> None:
    url = url.format(port=unreached.port) if url != "server" else f"{guarded.base_url}/metrics"
    error = right.check(http.post(CHAT, json=ask(url)), param=PART)
    assert "rule: " in error["message"]


@field_case(1, "an address that the operator allows", ANSWERED)
def test_allowed_address(http: httpx.Client, media: Origin) -> None:
    assert content(http.post(CHAT, json=ask(f"{media.url}{PICTURE}"))) == "A red circle."


@field_case(
    2,
    "302 to loopback, to `[::ffff:127.0.0.1]`, to `//127.0.0.1/x`, to a private network, to another port, to `file:`, "
    "and at the end of a chain",
    REFUSED,
)
@field_case(21, "the redirects of case 2 against a real server, in every test run", REFUSED)
@pytest.mark.parametrize(
    "target",
    [
        f"http://127.0.0.1:{P}/x",
        f"http://[::ffff:127.0.0.1]:{P}/",
        f"//127.0.0.1:{P}/x",
        f"http://localhost:{P}/x",
        "http://10.0.0.1/x",
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.3:81/x",
        "file:///etc/passwd",
        "ftp://127.0.0.3/x",
    ],
)
@pytest.mark.parametrize("hops", [1, 3])
def test_every_hop_passes_the_policy(
    http: httpx.Client, media: Origin, unreached: Trap, right: Right, target: str, hops: int
) -> None:
    for hop in range(1, hops):
        media.pages[f"/hop{hop}"] = redirect(f"/hop{hop + 1}")
    media.pages[f"/hop{hops}"] = redirect(target.format(port=media.port))
    error = right.check(http.post(CHAT, json=ask(f"{media.url}/hop1")), param=PART)
    assert "127.0.0" not in error["message"]
    assert media.gets[f"/hop{hops}"] >= 1


@field_case(12, "`HTTP_PROXY`, `HTTPS_PROXY` and `ALL_PROXY` in the server's environment: not used", ANSWERED)
def test_proxies_of_the_environment(http: httpx.Client, media: Origin, proxy: Trap) -> None:
    before = media.gets[PICTURE]
    assert content(http.post(CHAT, json=ask(f"{media.url}{PICTURE}"))) == "A red circle."
    http.post(CHAT, json=ask("https://allowed.example/x.png"))
    assert media.gets[PICTURE] == before + 1
    assert proxy.connections == 0


@field_case(13, "a host list with entries that could never match", "start-up error that names the entry")
@pytest.mark.parametrize("entry", ["img*.example.com", "https://example.com"])
def test_entries_that_cannot_match(entry: str) -> None:
    assert entry in failing("--fetch-hosts", entry)


@field_case(14, "port 22, 6379, 81, 8080 of an allowed address", REFUSED)
@pytest.mark.parametrize("port", [22, 6379, 81, 8080])
def test_other_ports(http: httpx.Client, right: Right, port: int) -> None:
    right.check(http.post(CHAT, json=ask(f"http://127.0.0.3:{port}/")), param=PART)


@field_case(14, "port 99999, an empty port, full-width digits, signs, hex", INVALID)
@pytest.mark.parametrize("port", ["99999", "", "８０", "+80", "-1", "8 0", "0x50", "80a", "65536"])
def test_ports_that_are_none(http: httpx.Client, right: Right, port: str) -> None:
    right.check(http.post(CHAT, json=ask(f"http://127.0.0.3:{port}/x")), param=PART)


@field_case(15, "`file:` URLs in all spellings, and other schemes", REFUSED)
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "file:///allowed/%2e%2e/etc/passwd",
        "file://localhost/etc/passwd",
        "file://a/b",
        "file:///allowed/%00",
        "file:/etc/passwd",
        "gopher://127.0.0.1:6379/_INFO",
        "ftp://127.0.0.3/",
        "jar:file:///x!/y",
        "blob:https://127.0.0.3/x",
    ],
)
def test_schemes(http: httpx.Client, right: Right, url: str) -> None:
    right.check(http.post(CHAT, json=ask(url)), param=PART)


@field_case(15, "bare paths and names", INVALID)
@pytest.mark.parametrize("url", ["/etc/passwd", "etc/passwd", "./x.png", "../x.png", "//127.0.0.3/x.png", "x.png?y:z"])
def test_bare_paths(http: httpx.Client, right: Right, url: str) -> None:
    right.check(http.post(CHAT, json=ask(url)), param=PART)


@field_case(
    16,
    "three pictures, the second forbidden: the whole request, at once; nobody else asks; the others' fetches end",
    REFUSED,
)
def test_refusal_ends_the_whole_request(http: httpx.Client, media: Origin, unreached: Trap, right: Right) -> None:
    gate = threading.Event()
    for name in ("/first.png", "/third.png"):
        media.pages[name] = held(gate, body(noise(5, 32)))
    urls = (f"{media.url}/first.png", f"http://127.0.0.1:{unreached.port}/x", f"{media.url}/third.png")
    right.check(http.post(CHAT, json=chat(user(*map(image, urls), "x"))), param="messages[0].content[1].image_url")
    assert not gate.is_set()
    gate.set()


@field_case(17, "a picture whose origin answers a second GET differently", ANSWERED)
def test_one_get_for_a_picture(http: httpx.Client, media: Origin) -> None:
    media.pages["/once.png"] = body(encoded(one("green", "star", seed=17)))
    question = ask(f"{media.url}/once.png", n=2)
    assert content(http.post(CHAT, json=question)) == "A green star."
    assert media.gets["/once.png"] == 1


@field_case(18, "a playlist, as a picture, inline and fetched", Right(415, "media_unsupported"))
@pytest.mark.parametrize("mime", ["video/mp4", "image/png", "application/vnd.apple.mpegurl"])
def test_playlists(http: httpx.Client, media: Origin, unreached: Trap, right: Right, mime: str) -> None:
    for segment in (b"http://127.0.0.1:%d/seg0.ts" % unreached.port, b"file:///etc/passwd"):
        data = b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n" + segment + b"\n#EXT-X-ENDLIST\n"
        media.pages["/list.m3u8"] = body(data, mime)
        for url in (f"{media.url}/list.m3u8", data_url(data, mime)):
            right.check(http.post(CHAT, json=ask(url)), param=PART)
    recorded = case("case018_hls_named_mp4.mp4")
    right.check(http.post(CHAT, json=ask(data_url(recorded, mime))), param=PART)


@field_case(20, "an address on a private network: the refusal says what kind it is", REFUSED)
@pytest.mark.parametrize(
    ("url", "rule"),
    [
        (f"http://127.0.0.1:{P}/", "loopback"),
        ("http://10.1.2.3/", "private"),
        ("http://169.254.1.1/", "link-local"),
        ("http://169.254.169.254/", "metadata"),
        ("http://127.0.0.3:82/", "port"),
    ],
)
def test_refusals_say_which_rule(http: httpx.Client, unreached: Trap, right: Right, url: str, rule: str) -> None:
    error = right.check(http.post(CHAT, json=ask(url.format(port=unreached.port))), param=PART)
    assert f"(rule: {rule})" in error["message"]
