"""Group B: what origins do to whoever fetches from them, from being slow to sending it in circles. Not what their bodies are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler

import httpx
import pytest
from tests.blackbox.field_cases.conftest import CHAT
from tests.blackbox.field_cases.listeners import by_turns, closing_once, dripping, head, raw, silent
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.origins import Answer, Origin, body, delayed, redirect, stalled, status
from tests.blackbox.pictures import DESCRIBE, ask, chat, encoded, image, one, user
from tests.blackbox.replies import content
from tests.blackbox.server import Server

PART = "messages[0].content[0].image_url"
RED = encoded(one("red", "circle"))
TIMEOUT = "media_fetch_timeout"
FAILED = Right(502, "media_fetch_failed")
REJECTED = Right(400, "media_fetch_rejected")
TOO_LARGE = Right(413, "media_too_large", "max_item_bytes")


@pytest.mark.parametrize(
    ("way", "right"),
    [
        pytest.param(way, Right(504, TIMEOUT, limit), marks=field_case(22, sent, Right(504, TIMEOUT, limit)), id=way)
        for way, sent, limit in (
            ("silent", "an origin that accepts and never answers", "fetch.first_byte_seconds"),
            ("stalled", "one that stops sending after its head", "fetch.read_seconds"),
            ("dripping", "one that sends a byte now and then, for ever", "max_fetch_seconds"),
        )
    ],
)
def test_slow_origins(tight: Server, web: Origin, gate: threading.Event, way: str, right: Right) -> None:
    web.pages[f"/{way}"] = {"silent": silent(gate), "stalled": stalled(gate), "dripping": dripping(gate, 0.1)}[way]
    before = web.gets[f"/{way}"]
    with tight.client() as http:
        right.check(http.post(CHAT, json=ask(f"{web.url}/{way}")), param=PART)
    assert web.gets[f"/{way}"] - before <= 2


@pytest.mark.parametrize(
    ("code", "right"),
    [
        *(
            pytest.param(
                code,
                REJECTED,
                marks=field_case(23, "an origin that answers 400, 401, 403, 404, 410, 451: no retry", REJECTED),
            )
            for code in (400, 401, 403, 404, 410, 451)
        ),
        *(
            pytest.param(code, FAILED, marks=field_case(23, "an origin that answers 429, 500, 502, 503, 504", FAILED))
            for code in (429, 500, 502, 503, 504)
        ),
    ],
)
def test_failures_of_an_origin(http: httpx.Client, guarded: Server, media: Origin, code: int, right: Right) -> None:
    path = f"/status{code}"
    media.pages[path] = status(code)
    before = media.gets[path]
    error = right.check(http.post(CHAT, json=ask(f"{media.url}{path}")), param=PART)
    assert str(code) in error["message"]
    assert media.gets[path] - before <= (1 if code < 500 else 2)
    assert "Traceback" not in guarded.log_text()


@field_case(23, "an origin that fails once, or drops the connection once: tried again", ANSWERED)
@pytest.mark.parametrize("first", [status(503), None], ids=["503", "dropped"])
def test_one_retry(http: httpx.Client, media: Origin, first: Answer | None) -> None:
    path = "/flaky" if first else "/dropping"
    media.pages[path] = by_turns([first, body(RED)]) if first else closing_once(body(RED), [])
    assert content(http.post(CHAT, json=ask(f"{media.url}{path}"))) == "A red circle."
    assert media.gets[path] == 2


def only_for_known_clients(handler: BaseHTTPRequestHandler) -> None:
    agent = handler.headers.get("User-Agent", "").lower()
    anonymous = not agent or agent.startswith(("python", "aiohttp", "httpx"))
    (status(403) if anonymous else body(RED))(handler)


@field_case(24, "an origin that refuses clients without a User-Agent of their own, behind a redirect", ANSWERED)
def test_user_agent_on_every_hop(http: httpx.Client, media: Origin) -> None:
    media.pages["/polite.png"] = only_for_known_clients
    media.pages["/to-polite"] = redirect("/polite.png")
    media.headers.clear()
    assert content(http.post(CHAT, json=ask(f"{media.url}/to-polite"))) == "A red circle."
    assert all(sent["User-Agent"].startswith("foveate/") for sent in media.headers)


@field_case(24, "an origin that answers 403 to us", REJECTED)
def test_403_is_told(http: httpx.Client, media: Origin, right: Right) -> None:
    media.pages["/forbidden.png"] = raw(
        head("Content-Length: 25", status="403 Forbidden") + b"Please set a user-agent. "
    )
    error = right.check(http.post(CHAT, json=ask(f"{media.url}/forbidden.png")), param=PART)
    assert "403" in error["message"]
    assert "user_agent" in error["message"] or "User-Agent" in error["message"]
    assert "Please set" not in error["message"]


@field_case(
    27,
    "`/a%27b.jpg?X-Sig=a%2Fb%2Bc%3D`, `%7E`, `%2e%2e`, `%e4`, `;=+,`: on the wire as given, also from a Location",
    ANSWERED,
)
@pytest.mark.parametrize(
    "target",
    [
        "/a%27b.png?X-Sig=a%2Fb%2Bc%3D",
        "/a%7Eb.png?sig=%e4%E4",
        "/a/%2e%2e/b.png?x=%2E",
        "/a//b.png?x=1;y=2,3+4&z",
        "/sig.png?a='(x)'!*$[]",
        "/sig.png?",
        "/s%20ig.png?q=%20+%20",
    ],
)
def test_signed_urls(http: httpx.Client, media: Origin, target: str) -> None:
    media.pages[target.partition("?")[0]] = body(RED)
    media.pages["/to-signed"] = redirect(target)
    for url in (f"{media.url}{target}", f"{media.url}/to-signed"):
        assert content(http.post(CHAT, json=ask(url))) == "A red circle."
        assert media.targets[-1] == target


@field_case(27, "a fragment is not sent", ANSWERED)
def test_fragments(http: httpx.Client, media: Origin) -> None:
    media.pages["/fragment.png"] = body(RED)
    media.pages["/to-fragment"] = redirect("/fragment.png?a=b#there")
    for path in ("/fragment.png?a=b#here", "/to-fragment"):
        assert content(http.post(CHAT, json=ask(f"{media.url}{path}"))) == "A red circle."
        assert media.targets[-1] == "/fragment.png?a=b"


@field_case(
    29, "5 requests at once of 16 pictures each, all from one origin that takes 300 ms: all are answered", ANSWERED
)
def test_many_urls_of_one_origin(guarded: Server, media: Origin) -> None:
    pictures = [encoded(one("blue", "square", seed=seed, size=(56, 56))) for seed in range(16)]
    for number in range(80):
        media.pages[f"/many{number}.png"] = delayed(0.3, body(pictures[number % 16]))

    def send(first: int) -> httpx.Response:
        urls = [f"{media.url}/many{number}.png" for number in range(first, first + 16)]
        with guarded.client() as client:
            return client.post(CHAT, json=chat(user(*map(image, urls), DESCRIBE), max_tokens=2))

    with ThreadPoolExecutor(5) as pool:
        for response in pool.map(send, range(0, 80, 16)):
            content(response)
            assert response.json()["usage"]["prompt_tokens_details"]["images"] == 16


@field_case(
    32, "301, 302, 303, 307, 308; a Location that is absolute, relative, scheme-relative, with a fragment", ANSWERED
)
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_ordinary_redirects(http: httpx.Client, media: Origin, code: int) -> None:
    media.pages["/img/a.png"] = body(RED)
    authority = media.url.removeprefix("http:")
    for place in (
        "/img/a.png",
        f"{authority}/img/a.png",
        f"{media.url}/img/a.png#x",
        "a.png",
        "../img/./a.png",
        "?x=1",
    ):
        media.pages["/img/moved"] = by_turns([status(code, ("Location", place)), body(RED)])
        assert content(http.post(CHAT, json=ask(f"{media.url}/img/moved"))) == "A red circle.", place


@field_case(32, "11 hops, one hop more than allowed", Right(400, "too_many_redirects", "max_redirects"))
def test_too_many_redirects(http: httpx.Client, media: Origin, right: Right) -> None:
    for hop in range(11):
        media.pages[f"/long{hop}"] = redirect(f"/long{hop + 1}")
    media.pages["/long11"] = body(RED)
    for path in ("/long0", "/long7"):
        error = right.check(http.post(CHAT, json=ask(f"{media.url}{path}")), param=PART)
        assert (error["limit"], error["actual"]) == (3, 4)
    assert content(http.post(CHAT, json=ask(f"{media.url}/long8"))) == "A red circle."


@field_case(
    32,
    "a loop of two, a redirect to itself, one with an empty Location",
    Right(400, "too_many_redirects"),
)
@pytest.mark.parametrize(
    "location",
    [
        pytest.param((("Location", ""),), id="empty"),
        pytest.param((("Location", "/nowhere"),), id="itself"),
        pytest.param((("Location", "/pong"),), id="loop"),
    ],
)
def test_redirects_in_a_circle(
    http: httpx.Client, media: Origin, right: Right, location: tuple[tuple[str, str], ...]
) -> None:
    media.pages["/nowhere"] = status(302, *location)
    media.pages["/pong"] = redirect("/nowhere")
    before = media.gets["/nowhere"]
    right.check(http.post(CHAT, json=ask(f"{media.url}/nowhere")), param=PART)
    assert media.gets["/nowhere"] - before <= 2


@field_case(32, "a redirect without a Location", REJECTED)
def test_redirect_without_a_location(http: httpx.Client, media: Origin, right: Right) -> None:
    media.pages["/nowhere-at-all"] = status(302)
    right.check(http.post(CHAT, json=ask(f"{media.url}/nowhere-at-all")), param=PART)


@field_case(
    35, "signed URLs whose host refuses, is forbidden, or fails: the signature is in no log and no answer", FAILED
)
@pytest.mark.parametrize("where", ["refuses", "fails"])
def test_signatures_are_not_logged(
    http: httpx.Client, guarded: Server, media: Origin, right: Right, where: str
) -> None:
    media.pages["/fails"] = status(503)
    start = {"refuses": "http://127.0.0.3:80", "fails": media.url}[where]
    response = http.post(CHAT, json=ask(f"{start}/fails?X-Amz-Signature=SECRET{where}"))
    right.check(response, param=PART)
    guarded.record(response.headers["x-request-id"])
    for told in (response.text, guarded.request_log.read_text(), guarded.log_text(), guarded.metrics().text):
        assert "SECRET" not in told
