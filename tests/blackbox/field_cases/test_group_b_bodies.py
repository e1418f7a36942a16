"""Group B, bodies: what origins send, from more than is allowed to what is no picture, and what they say that it is."""

from __future__ import annotations

import threading
import zlib

import httpx
import pytest
from tests.blackbox.field_cases.conftest import CHAT
from tests.blackbox.field_cases.listeners import encoded_as, head, raw, zipped
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.origins import Origin, body, endless
from tests.blackbox.pictures import ask, case, data_url, encoded, one
from tests.blackbox.replies import content
from tests.blackbox.server import Server, eventually

PART = "messages[0].content[0].image_url"
RED = encoded(one("red", "circle"))
FAILED = Right(502, "media_fetch_failed")
REJECTED = Right(400, "media_fetch_rejected")
TOO_LARGE = Right(413, "media_too_large", "max_item_bytes")
NO_MEDIA = Right(415, "media_unsupported")


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


@field_case(34, "a picture of 7/8 of `max_item_bytes`, whose base64 is larger than the limit", ANSWERED)
def test_limits_are_of_bytes_not_of_base64(tight: Server) -> None:
    limit = 256 * 1024
    data = RED + b"\x00" * (limit * 7 // 8 - len(RED))
    assert len(data) * 4 / 3 > limit
    with tight.client() as client:
        assert content(client.post(CHAT, json=ask(data_url(data)))) == "A red circle."
        TOO_LARGE.check(client.post(CHAT, json=ask(data_url(RED + b"\x00" * limit))), param=PART)
