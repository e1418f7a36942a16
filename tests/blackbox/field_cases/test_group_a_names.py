"""Group A, names: what they resolve to, how often they are asked for, and which of them the operator opened.

``guarded`` asks the tests' own name server. 127.0.0.3 is a network it may fetch from; 127.0.0.4 is not, unless a host of
the list resolves to it; at the other loopback addresses the traps listen.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.blackbox.failing_starts import failing
from tests.blackbox.field_cases.conftest import CHAT, PICTURE
from tests.blackbox.field_cases.dns import NameServer
from tests.blackbox.field_cases.listeners import Trap
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.origins import Origin, body, origin, redirect
from tests.blackbox.pictures import ask, encoded, one
from tests.blackbox.replies import content

PART = "messages[0].content[0].image_url"
REFUSED = Right(400, "media_url_refused")
FAILED = Right(502, "media_fetch_failed")
MAY = "127.0.0.3"
INNER = "127.0.0.4"
TRAP = "127.0.0.1"


@pytest.fixture(scope="module")
def inner(media: Origin) -> Iterator[Origin]:
    """A web server at an address that only hosts of the operator's list may resolve to."""
    with origin(INNER, media.port) as made:
        made.pages[PICTURE] = body(encoded(one("blue", "square")))
        yield made


@field_case(8, "names that resolve to loopback, private, metadata, link-local or mapped addresses", REFUSED)
@pytest.mark.parametrize(
    "answer",
    [
        [TRAP],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["::ffff:10.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["fd00:ec2::254"],
        ["fe80::1"],
        ["64:ff9b::7f00:1"],
        ["0.0.0.0"],
    ],
    ids=lambda answer: answer[0],
)
def test_names_with_forbidden_addresses(
    http: httpx.Client, names: NameServer, unreached: Trap, right: Right, answer: list[str]
) -> None:
    name = f"evil-{answer[0].replace(':', '-').replace('.', '-')}.test"
    names.zone[name] = [answer]
    error = right.check(http.post(CHAT, json=ask(f"http://{name}:{unreached.port}{PICTURE}")), param=PART)
    assert answer[0] not in error["message"]


@field_case(8, "mixed answers: one address allowed or public, one forbidden", REFUSED)
@pytest.mark.parametrize(
    "answer", [[MAY, TRAP], [TRAP, MAY], ["93.184.216.34", TRAP], [MAY, "::1"]], ids=lambda answer: "+".join(answer)
)
def test_mixed_answers(http: httpx.Client, names: NameServer, unreached: Trap, right: Right, answer: list[str]) -> None:
    name = f"mixed-{'-'.join(answer).replace(':', 'x').replace('.', '-')}.test"
    names.zone[name] = [answer]
    right.check(http.post(CHAT, json=ask(f"http://{name}:{unreached.port}{PICTURE}")), param=PART)


@field_case(
    9,
    "a name that is allowed at the first look-up and loopback at the second: one look-up, the checked address",
    ANSWERED,
)
def test_rebinding_between_check_and_connect(
    http: httpx.Client, names: NameServer, media: Origin, unreached: Trap
) -> None:
    names.zone["rebind.test"] = [[MAY], [TRAP]]
    media.headers.clear()
    assert content(http.post(CHAT, json=ask(f"http://rebind.test:{media.port}{PICTURE}"))) == "A red circle."
    assert names.lookups("rebind.test") == 1
    assert media.headers[-1]["Host"] == f"rebind.test:{media.port}"
    # The next request looks the name up again: no connection that was kept open is used for the old answer.
    REFUSED.check(http.post(CHAT, json=ask(f"http://rebind.test:{media.port}{PICTURE}")), param=PART)
    assert names.lookups("rebind.test") == 2


@field_case(9, "the same, where nobody listens at the first address: one look-up, also for the retry", FAILED)
def test_rebinding_before_the_retry(http: httpx.Client, names: NameServer, unreached: Trap, right: Right) -> None:
    names.zone["rebind-retry.test"] = [[MAY], [TRAP]]
    right.check(http.post(CHAT, json=ask("http://rebind-retry.test:80/x")), param=PART)
    assert names.lookups("rebind-retry.test") == 1


@field_case(9, "redirects: each hop is looked up once, and judged", REFUSED)
def test_hops_to_names(http: httpx.Client, names: NameServer, media: Origin, unreached: Trap, right: Right) -> None:
    names.zone |= {"first.test": [[MAY]], "second.test": [[MAY]], "third.test": [[TRAP]]}
    media.pages["/to-second"] = redirect(f"http://second.test:{media.port}/to-third")
    media.pages["/to-third"] = redirect(f"http://third.test:{media.port}/x")
    right.check(http.post(CHAT, json=ask(f"http://first.test:{media.port}/to-second")), param=PART)
    assert [names.lookups(f"{hop}.test") for hop in ("first", "second", "third")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        pytest.param(host, asked, marks=field_case(number, sent, ANSWERED), id=host)
        for number, sent, hosts in (
            (11, "`faß.de` in the list, `xn--fa-hia.de` in the URL", [("xn--fa-hia.de", "xn--fa-hia.de")]),
            (
                13,
                "`*.media.example` in the list: `img.media.example`, `a.b.media.example`",
                [("img.media.example", "img.media.example"), ("a.b.media.example", "a.b.media.example")],
            ),
            (
                7,
                "`cdn.example.` in the list, `cdn.example` in the URL; and the other way round; upper case",
                [
                    ("cdn.example", "cdn.example"),
                    ("cdn.example.", "cdn.example"),
                    ("allowed.example.", "allowed.example"),
                    ("ALLOWED.Example", "allowed.example"),
                ],
            ),
            (
                20,
                "a host that the operator opened, on a network that is closed",
                [("allowed.example", "allowed.example")],
            ),
        )
        for host, asked in hosts
    ],
)
def test_hosts_of_the_list(http: httpx.Client, names: NameServer, inner: Origin, host: str, asked: str) -> None:
    names.zone[asked] = [[INNER]]
    assert content(http.post(CHAT, json=ask(f"http://{host}:{inner.port}{PICTURE}"))) == "A blue square."


@pytest.mark.parametrize(
    "host",
    [
        pytest.param(host, marks=field_case(number, sent, REFUSED), id=host)
        for number, sent, hosts in (
            (
                13,
                "`media.example`, `evil-media.example`, `img.media.example.evil.test`",
                ("media.example", "evil-media.example", "img.media.example.evil.test", "xmedia.example"),
            ),
            (
                3,
                "`evil-allowed.example`, `allowed.example.evil.test`, of the recorded spellings",
                ("evil-allowed.example", "allowed.example.evil.test"),
            ),
            (11, "homographs in their `xn--` form", ("xn--llowed-9fg.example", "xn--fa-gia.de")),
            (
                20,
                "a host that resolves to a closed network and is not in the list: the refusal says which rule",
                ("img.dev.test",),
            ),
        )
        for host in hosts
    ],
)
def test_hosts_that_only_look_like_it(
    http: httpx.Client, names: NameServer, inner: Origin, right: Right, host: str
) -> None:
    names.zone[host] = [[INNER]]
    before = inner.connections
    error = right.check(http.post(CHAT, json=ask(f"http://{host}:{inner.port}{PICTURE}")), param=PART)
    assert "(rule: loopback)" in error["message"]
    assert inner.connections == before


@field_case(14, "`allowed.example:22`: refused before it is looked up", REFUSED)
def test_allowed_host_and_other_port(http: httpx.Client, names: NameServer, right: Right) -> None:
    names.zone["port.media.example"] = [[INNER]]
    right.check(http.post(CHAT, json=ask("http://port.media.example:22/")), param=PART)
    assert names.lookups("port.media.example") == 0


@field_case(22, "a name that does not exist", FAILED)
def test_names_that_do_not_exist(http: httpx.Client, right: Right) -> None:
    right.check(http.post(CHAT, json=ask("http://nobody.test/x.png")), param=PART)


@field_case(22, "a name server that does not answer", Right(504, "media_fetch_timeout", "fetch.dns_seconds"))
def test_name_servers_that_do_not_answer(http: httpx.Client, names: NameServer, right: Right) -> None:
    names.silent.add("silent.test")
    right.check(http.post(CHAT, json=ask("http://silent.test/x.png")), param=PART)


@field_case(27, "a signed URL of an allowed host that is not there: allowed by the policy", FAILED)
def test_recorded_signed_url(http: httpx.Client, names: NameServer, right: Right) -> None:
    names.zone["allowed.example"] = [[INNER]]
    for url in ("https://allowed.example/a%27b.jpg?X-Sig=a%2Fb%2Bc%3D", "https://allowed.example./x.png"):
        right.check(http.post(CHAT, json=ask(url)), param=PART)


@field_case(12, "`fetch.proxy` without a scheme", "start-up error that names the setting")
def test_a_proxy_that_is_none() -> None:
    assert "fetch.proxy" in failing("--fetch-proxy", "172.25.239.45:33080")
