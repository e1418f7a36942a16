"""One strict parse, and every opening as narrow as it was written. Field cases 3 to 15 and 20."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.errors import StartupError, UrlInvalid, UrlRefused
from foveate.media.policy import UrlPolicy

CASES = [json.loads(line) for line in Path("tests/data/cases/case003_url_policy.jsonl").read_text("utf-8").splitlines()]
OPEN = UrlPolicy.of(http_allowed=True)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["expected"].startswith("reject")], ids=lambda c: repr(c["url"])
)
def test_refuses_the_hostile_spellings(case: dict[str, str]) -> None:
    with pytest.raises((UrlInvalid, UrlRefused)):
        OPEN.parse(case["url"])


def test_the_other_cases_hold_for_a_server_restricted_to_one_host() -> None:
    """Every line of the file is either refused above or judged here."""
    policy = UrlPolicy.of(only_hosts=["allowed.example"])
    others = {case["url"]: case["expected"] for case in CASES if not case["expected"].startswith("reject")}
    assert len(others) == 4
    for url, expected in others.items():
        if expected.startswith("not matched"):
            with pytest.raises(UrlRefused) as caught:
                policy.parse(url)
            assert "rule: host" in caught.value.public
        else:
            assert policy.parse(url).host == "allowed.example"
            assert url.endswith(policy.parse(url).target)


def test_keeps_path_and_query_byte_for_byte() -> None:
    url = OPEN.parse("https://allowed.example/a%27b.jpg?X-Sig=a%2Fb%2Bc%3D&e=%e4%7E#part")
    assert url.target == "/a%27b.jpg?X-Sig=a%2Fb%2Bc%3D&e=%e4%7E"
    assert (url.scheme, url.host, url.port, url.authority) == ("https", "allowed.example", 443, "allowed.example")


def test_encodes_only_what_is_not_ascii() -> None:
    assert OPEN.parse("https://h.example/\u56fe%7E.png?q=\u00e4'").target == "/%E5%9B%BE%7E.png?q=%C3%A4'"


def test_a_value_in_a_log_shows_no_query() -> None:
    url = OPEN.parse("https://h.example/x.jpg?X-Amz-Signature=SECRET")
    assert "SECRET" not in str(url)
    assert "SECRET" not in repr(url)


@pytest.mark.parametrize(
    ("text", "target"), [("https://h.example", "/"), ("https://h.example?x=1", "/?x=1"), ("https://h.example/?", "/?")]
)
def test_an_empty_path_is_the_root(text: str, target: str) -> None:
    assert OPEN.parse(text).target == target


def test_http_needs_the_setting() -> None:
    with pytest.raises(UrlRefused, match="scheme"):
        UrlPolicy.of().parse("http://h.example/")
    assert OPEN.parse("http://h.example/").port == 80


@pytest.mark.parametrize("scheme", ["file", "ftp", "gopher", "data", "inline", "javascript"])
def test_other_schemes_are_refused_by_name(scheme: str) -> None:
    with pytest.raises(UrlRefused, match=r"rule: scheme"):
        OPEN.parse(f"{scheme}://h.example/")


@pytest.mark.parametrize("port", ["", "0", "65536", "99999", "8o", "+80", "-1", "080000"])
def test_bad_ports_are_invalid(port: str) -> None:
    with pytest.raises(UrlInvalid, match="port"):
        OPEN.parse(f"http://h.example:{port}/")


def test_other_ports_need_to_be_listed() -> None:
    with pytest.raises(UrlRefused, match=r"these ports only: 80, 443 \(rule: port\)"):
        OPEN.parse("http://h.example:6379/")
    assert UrlPolicy.of(ports=[6379]).parse("https://h.example:6379/").authority == "h.example:6379"


def test_hints_at_a_forgotten_data_prefix() -> None:
    with pytest.raises(UrlInvalid, match="bare base64"):
        OPEN.parse("iVBORw0KGgoAAAANSUhEUgAAAAQAAAAECAIAAAAmkwkpAAAAPUlEQVR4nGOw5OmpLXI30bkhwK")


def test_names_are_compared_in_one_form() -> None:
    policy = UrlPolicy.of(hosts=["faß.de", "CDN.Example.com.", "xn--bcher-kva.example"])
    for host in ("xn--fa-hia.de", "cdn.example.com", "CDN.example.COM.", "xn--bcher-kva.example"):
        url = policy.parse(f"https://{host}/x.png")
        policy.check_address(url, ip_address("10.0.0.1"))
    with pytest.raises(UrlInvalid, match="xn--"):
        policy.parse("https://faß.de/")
    url = policy.parse("https://fass.de/")
    with pytest.raises(UrlRefused):
        policy.check_address(url, ip_address("10.0.0.1"))


@pytest.mark.parametrize(
    ("host", "opened"),
    [
        ("img.example.com", True),
        ("a.b.example.com", True),
        ("example.com", False),
        ("evil-example.com", False),
        ("img.example.com.evil.test", False),
    ],
)
def test_a_wildcard_ends_at_a_label(host: str, opened: bool) -> None:
    policy = UrlPolicy.of(hosts=["*.example.com"])
    url = policy.parse(f"https://{host}/a.png")
    if opened:
        policy.check_address(url, ip_address("192.168.0.9"))
    else:
        with pytest.raises(UrlRefused) as caught:
            policy.check_address(url, ip_address("192.168.0.9"))
        assert "rule: private" in caught.value.public


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://cdn.example.com/a.png", True),
        ("https://CDN.example.COM./a.png", True),
        ("https://img.bücher.example/", False),
        ("https://img.xn--bcher-kva.example/a.png", True),
        ("https://a.b.xn--bcher-kva.example/a.png", True),
        ("https://xn--bcher-kva.example/a.png", False),
        ("https://evil-cdn.example.com/", False),
        ("https://cdn.example.com.evil.test/", False),
        ("https://example.com/", False),
        ("https://93.184.216.34/", True),
        ("https://93.184.216.35/", False),
        ("https://[2606:4700:4700:0::1111]/", True),
        ("https://my_host.example/", True),
    ],
)
def test_a_server_can_be_restricted_to_named_hosts(url: str, allowed: bool) -> None:
    entries = ["cdn.example.com.", "*.bücher.example", "93.184.216.34", "[2606:4700:4700::1111]", "My_Host.example"]
    policy = UrlPolicy.of(only_hosts=entries)
    if allowed:
        policy.parse(url)
    else:
        with pytest.raises((UrlRefused, UrlInvalid)) as caught:
            policy.parse(url)
        assert "rule: host" in caught.value.public or "ASCII" in caught.value.public
        assert "cdn.example.com" not in caught.value.public, "the list is the operator's"


def test_a_restriction_opens_nothing_and_holds_on_redirects() -> None:
    policy = UrlPolicy.of(only_hosts=["img.example", "10.0.0.1"])
    url = policy.parse("https://img.example/")
    with pytest.raises(UrlRefused, match="private"):
        policy.check_address(url, ip_address("10.0.0.1"))
    with pytest.raises(UrlRefused, match="private"):
        policy.parse("https://10.0.0.1/")
    with pytest.raises(UrlRefused, match=r"other\.example") as caught:
        policy.follow(url, "https://other.example/")
    assert "rule: host" in caught.value.public


def test_a_network_is_opened_for_its_addresses_only() -> None:
    policy = UrlPolicy.of(private_networks=["10.1.0.0/16", "fd00::/8"])
    url = policy.parse("https://h.example/")
    for inside in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1"):
        policy.check_address(url, ip_address(inside))
    for outside in ("10.2.0.1", "127.0.0.1", "::ffff:10.2.0.1", "fe80::1"):
        with pytest.raises(UrlRefused):
            policy.check_address(url, ip_address(outside))
    # Other spellings of an opened IPv4 address go by other routes.
    for spelling in ("64:ff9b::a01:203", "2002:a01:203::", "::10.1.2.3", "::ffff:0:a01:203"):
        with pytest.raises(UrlRefused):
            policy.check_address(url, ip_address(spelling))


def test_metadata_is_opened_by_its_own_address_only() -> None:
    for policy in (
        UrlPolicy.of(private_networks=["169.254.0.0/16", "fd00::/8", "0.0.0.0/0"]),
        UrlPolicy.of(hosts=["meta.example"]),
    ):
        url = policy.parse("https://meta.example/")
        for address in ("169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "168.63.129.16"):
            with pytest.raises(UrlRefused, match="metadata"):
                policy.check_address(url, ip_address(address))
    UrlPolicy.of(private_networks=["169.254.169.254/32"]).check_address(url, ip_address("169.254.169.254"))


def test_localhost_is_loopback_whatever_a_resolver_says() -> None:
    with pytest.raises(UrlRefused, match="loopback"):
        OPEN.parse("https://db.localhost/")
    assert UrlPolicy.of(private_networks=["127.0.0.0/8"]).parse("https://localhost/").host == "localhost"


def test_a_refusal_names_the_rule_and_never_the_address() -> None:
    url = OPEN.parse("https://h.example/?secret")
    with pytest.raises(UrlRefused) as caught:
        OPEN.check_address(url, ip_address("10.9.8.7"))
    assert "private" in caught.value.public
    assert "10.9.8.7" not in caught.value.public
    assert "10.9.8.7" in caught.value.detail
    assert "secret" not in caught.value.detail


@pytest.mark.parametrize(
    ("location", "arrives"),
    [
        ("/img/a.png", "https://h.example/img/a.png"),
        ("b.png", "https://h.example/dir/b.png"),
        ("../b.png", "https://h.example/b.png"),
        ("?v=2", "https://h.example/dir/page?v=2"),
        ("//other.example/x#y", "https://other.example/x"),
        ("https://other.example/a%27b?s=%2F", "https://other.example/a%27b?s=%2F"),
        ("/a%27b?s=a%2Fb", "https://h.example/a%27b?s=a%2Fb"),
        ("", "https://h.example/dir/page?v=1"),
    ],
)
def test_follows_redirects_as_written(location: str, arrives: str) -> None:
    url = OPEN.follow(OPEN.parse("https://h.example/dir/page?v=1"), location)
    assert f"{url.scheme}://{url.authority}{url.target}" == arrives


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        # RFC 3986, 5.4, as far as it has neither scheme nor host
        ("g", "/b/c/g"), ("./g", "/b/c/g"), ("g/", "/b/c/g/"), ("/g", "/g"), ("?y", "/b/c/d;p?y"), ("g?y", "/b/c/g?y"),
        (";x", "/b/c/;x"), ("g;x", "/b/c/g;x"), ("g;x?y", "/b/c/g;x?y"), ("", "/b/c/d;p?q"), (".", "/b/c/"),
        ("./", "/b/c/"), ("..", "/b/"), ("../", "/b/"), ("../g", "/b/g"), ("../..", "/"), ("../../", "/"),
        ("../../g", "/g"), ("../../../g", "/g"), ("../../../../g", "/g"), ("g.", "/b/c/g."), (".g", "/b/c/.g"),
        ("g..", "/b/c/g.."), ("..g", "/b/c/..g"), ("./../g", "/b/g"), ("./g/.", "/b/c/g/"), ("g/./h", "/b/c/g/h"),
        ("g/../h", "/b/c/h"), ("g;x=1/./y", "/b/c/g;x=1/y"), ("g;x=1/../y", "/b/c/y"), ("g?y/./x", "/b/c/g?y/./x"),
        ("g?y/../x", "/b/c/g?y/../x"),
        # byte for byte
        ("g?", "/b/c/g?"), ("?", "/b/c/d;p?"), ("g//h", "/b/c/g//h"), ("%2e%2E/g", "/b/c/%2e%2E/g"), ("[x", "/b/c/[x"),
        ("g?a=%2F&b", "/b/c/g?a=%2F&b"), ("..//evil.example/x", "/b//evil.example/x"),
        ("../..//evil.example/x", "//evil.example/x"),
    ],
)  # fmt: skip
def test_a_relative_redirect_keeps_its_host(reference: str, target: str) -> None:
    url = OPEN.follow(OPEN.parse("https://h.example/b/c/d;p?q"), reference)
    assert (url.host, url.port, url.target) == ("h.example", 443, target)


@given(
    base=st.text(alphabet="/.ab[]?;%", max_size=20),
    location=st.text(alphabet="/.ab[]?;:%", max_size=20).filter(lambda text: not text.startswith("//")),
)
def test_no_relative_redirect_leaves_its_host(base: str, location: str) -> None:
    start = OPEN.parse(f"https://h.example/{base}")
    if ":" in location:
        location = "./" + location
    url = OPEN.follow(start, location)
    assert (url.scheme, url.host, url.port) == ("https", "h.example", 443)
    assert url.target.startswith("/")
    if not location.startswith("/"):
        assert not {".", ".."} & set(url.path.split("/")) or not location.partition("?")[0]


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:9/x",
        "http://[::ffff:127.0.0.1]/",
        "//127.0.0.1/x",
        "file:///etc/passwd",
        "https://h.example:22/",
        "http://h.example/",
        "/a b",
        "/\\127.0.0.1",
        "\\\\127.0.0.1\\x",
        "https://user@h.example/",
        "///",
    ],
)
def test_a_redirect_passes_the_whole_policy(location: str) -> None:
    with pytest.raises((UrlInvalid, UrlRefused)):
        OPEN.follow(OPEN.parse("https://h.example/dir/page"), location)


@pytest.mark.parametrize(
    "settings",
    [
        {"private_networks": ["10.0.0.1/8"]},
        {"private_networks": ["all"]},
        {"hosts": ["*"]},
        {"hosts": ["a.*.example"]},
        {"hosts": ["https://x.example"]},
        {"hosts": ["10.0.0.1"]},
        {"hosts": [""]},
        {"only_hosts": ["*"]},
        {"only_hosts": ["*."]},
        {"only_hosts": ["img.*.example"]},
        {"only_hosts": ["img*.example"]},
        {"only_hosts": ["https://x.example"]},
        {"only_hosts": ["x.example:443"]},
        {"only_hosts": ["x.example/path"]},
        {"only_hosts": ["*.10.0.0.1"]},
        {"only_hosts": ["0x7f.1"]},
        {"only_hosts": ["fe80::1%eth0"]},
        {"only_hosts": ["a..b"]},
        {"ports": [0]},
    ],
    ids=str,
)
def test_a_setting_that_can_never_match_stops_the_start(settings: dict[str, list[str]]) -> None:
    with pytest.raises(StartupError):
        UrlPolicy.of(**settings)  # type: ignore[arg-type]


@given(st.text(max_size=40))
def test_any_text_is_a_url_or_a_client_error(text: str) -> None:
    for candidate in (text, f"https://{text}", f"https://h.example/{text}", f"https://h.example:{text}/"):
        try:
            url = OPEN.parse(candidate)
        except (UrlInvalid, UrlRefused):
            continue
        assert url.target.isascii()
        assert OPEN.parse(f"{url.scheme}://{url.authority}{url.target}") == url
