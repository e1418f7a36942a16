"""Group B: what origins do to whoever fetches from them, from being slow to lying about what they send."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler

import httpx
import pytest
from tests.blackbox.field_cases.conftest import CHAT
from tests.blackbox.field_cases.listeners import (
    by_turns,
    closing_once,
    dripping,
    encoded_as,
    head,
    raw,
    silent,
    zipped,
)
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.origins import Answer, Origin, body, delayed, endless, redirect, stalled, status
from tests.blackbox.pictures import DESCRIBE, ask, case, chat, data_url, encoded, image, one, user
from tests.blackbox.replies import content
from tests.blackbox.server import Server, eventually

PART = "messages[0].content[0].image_url"
RED = encoded(one("red", "circle"))
TIMEOUT = "media_fetch_timeout"
FAILED = Right(502, "media_fetch_failed")
REJECTED = Right(400, "media_fetch_rejected")
TOO_LARGE = Right(413, "media_too_large", "max_item_bytes")
NO_MEDIA = Right(415, "media_unsupported")


@pytest.fixture(scope="module")
def http(guarded: Server) -> Iterator[httpx.Client]:
    with guarded.client() as client:
        yield client


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Opens when the test is over, so that no origin waits on."""
    made = threading.Event()
    yield made
    made.set()


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


@field_case(25, "a body without an end; one announced as larger than allowed, with nothing behind it", TOO_LARGE)
@pytest.mark.parametrize("way", ["endless", "announced"])
def test_too_many_bytes(http: httpx.Client, media: Origin, gate: threading.Event, right: Right, way: str) -> None:
    announced = raw(head("Content-Type: image/png", "Content-Length: 99999999999"))
    media.pages["/large"] = endless(gate) if way == "endless" else announced
    error = right.check(http.post(CHAT, json=ask(f"{media.url}/large")), param=PART)
    assert error["limit"] == 32 * 2**20


@field_case(
    25,
    "a length that is no number, more data than announced, two lengths, a body that ends early, an answer that is no HTTP",
    FAILED,
)
@pytest.mark.parametrize(
    "answer",
    [
        head("Content-Length: abc") + RED,
        head("Content-Length: 10") + RED,
        head("Content-Length: -1") + RED,
        head("Content-Length: 10", "Content-Length: 20") + RED,
        head("Transfer-Encoding: chunked") + b"zz\r\n" + RED,
        head("Transfer-Encoding: chunked") + b"ffff\r\n" + RED,
        head(f"Content-Length: {len(RED) + 1}") + RED,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00" * 1000,
        b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 200_000 + b"\r\n\r\n",
        b"",
    ],
    ids=["abc", "more", "negative", "two", "chunk", "cut chunk", "cut", "ssh", "zeros", "long head", "nothing"],
)
def test_answers_that_are_no_http(http: httpx.Client, media: Origin, right: Right, answer: bytes) -> None:
    media.pages["/wrong"] = raw(answer)
    right.check(http.post(CHAT, json=ask(f"{media.url}/wrong")), param=PART)


BOMB = case("case026_64MiB_zeros_content_encoding.gz")


TWICE = "twice gzip, `deflate` that is none, br, zstd, a coding that nobody knows"


@pytest.mark.parametrize(
    ("codings", "data", "right"),
    [
        *(
            pytest.param(
                codings,
                data,
                TOO_LARGE,
                marks=field_case(26, "64 MiB of zeros as gzip, x-gzip, deflate", TOO_LARGE),
                id=codings,
            )
            for codings, data in (
                ("gzip", BOMB),
                ("GZIP", BOMB),
                ("x-gzip", BOMB),
                ("deflate", zlib.compress(bytes(2**26))),
            )
        ),
        *(
            pytest.param(codings, data, REJECTED, marks=field_case(26, TWICE, REJECTED), id=f"{codings} {len(data)}")
            for codings, data in (
                ("gzip, gzip", zipped(BOMB)),
                ("deflate", BOMB),
                ("gzip", RED),
                ("gzip", zipped(RED)[:-30]),
                ("br", b"\x0b\x02\x80hello\x03"),
                ("zstd", b"\x28\xb5\x2f\xfd" + b"\x00" * 60),
                ("rot13", RED),
            )
        ),
    ],
)
def test_compressed_bodies(
    http: httpx.Client, guarded: Server, media: Origin, codings: str, data: bytes, right: Right
) -> None:
    media.pages["/packed"] = encoded_as(codings, data)
    before = guarded.metrics().total("foveate_arena_used_bytes")
    right.check(http.post(CHAT, json=ask(f"{media.url}/packed")), param=PART)
    eventually("its memory to be free", lambda: guarded.metrics().total("foveate_arena_used_bytes") <= before)


@field_case(26, "a picture as `Content-Encoding: gzip`, although not asked for", ANSWERED)
def test_compressed_pictures(http: httpx.Client, media: Origin) -> None:
    media.pages["/packed.png"] = encoded_as("gzip", zipped(RED))
    assert content(http.post(CHAT, json=ask(f"{media.url}/packed.png"))) == "A red circle."


@field_case(26, "`Content-Encoding: identity`, and no encoding asked for", ANSWERED)
def test_identity_is_asked_for(http: httpx.Client, media: Origin) -> None:
    media.pages["/plain"] = encoded_as("identity", RED)
    media.headers.clear()
    assert content(http.post(CHAT, json=ask(f"{media.url}/plain"))) == "A red circle."
    assert media.headers[0].get("Accept-Encoding", "identity") == "identity"


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
    30, "200 with a page of HTML or JSON, `Not Found`, served as a picture: it says what it looks like", NO_MEDIA
)
@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (case("case030_html_error_page.jpg"), "HTML"),
        (b"\n\n  <HTML><body>login</body></HTML>", "HTML"),
        (b"\xef\xbb\xbf<!DOCTYPE html><title>x</title>", "HTML"),
        (case("case030_json_error_body.png"), "JSON"),
        (b'[{"error": "no"}]', "JSON"),
        (b"Not Found", ""),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML"),
    ],
    ids=["html", "upper html", "bom html", "json", "json list", "text", "xml"],
)
def test_error_pages(http: httpx.Client, media: Origin, right: Right, data: bytes, looks: str) -> None:
    media.pages["/page.jpg"] = body(data, "image/jpeg")
    error = right.check(http.post(CHAT, json=ask(f"{media.url}/page.jpg")), param=PART)
    assert looks in error["message"]
    assert "AccessDenied" not in error["message"]
    media.pages["/page.jpg"] = body(RED)
    assert content(http.post(CHAT, json=ask(f"{media.url}/page.jpg"))) == "A red circle."


@field_case(
    31,
    "PNG as `image/webp`, JPEG as `application/octet-stream`, as `image/jpg`, as `text/html`, without a type: the bytes decide",
    ANSWERED,
)
@pytest.mark.parametrize(
    "mime", ["image/webp", "application/octet-stream", "image/jpg", "text/html", "", "IMAGE/png; a=b"]
)
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_declared_types(http: httpx.Client, media: Origin, form: str, mime: str) -> None:
    data = encoded(one("red", "circle"), form)
    typed = [f"Content-Type: {mime}"] if mime else []
    media.pages["/typed"] = raw(head(*typed, f"Content-Length: {len(data)}") + data)
    assert content(http.post(CHAT, json=ask(f"{media.url}/typed"))) == "A red circle."


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


@field_case(34, "a picture of 7/8 of `max_item_bytes`, whose base64 is larger than the limit", ANSWERED)
def test_limits_are_of_bytes_not_of_base64(tight: Server) -> None:
    limit = 256 * 1024
    data = RED + b"\x00" * (limit * 7 // 8 - len(RED))
    assert len(data) * 4 / 3 > limit
    with tight.client() as client:
        assert content(client.post(CHAT, json=ask(data_url(data)))) == "A red circle."
        TOO_LARGE.check(client.post(CHAT, json=ask(data_url(RED + b"\x00" * limit))), param=PART)
