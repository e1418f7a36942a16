"""Group C: data URLs as clients really write them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import httpx
import pytest
from tests.blackbox.field_cases.conftest import CHAT
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.pictures import CASES, ask, chat, encoded, image, noise, one, user
from tests.blackbox.replies import content, joined, stream
from tests.blackbox.server import Server
from tests.blackbox.videos import shown

PART = "messages[0].content[0].image_url"
INVALID = Right(400, "invalid_data_url")
RED = encoded(one("red", "circle"))
B64 = base64.b64encode(RED).decode()
assert "+" in B64
assert "/" in B64


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


RECORDED = {
    line["name"]: line["url"] for line in map(json.loads, (CASES / "case036_data_urls.jsonl").read_text().splitlines())
}
CASE_OF = {
    36: (
        "`;charset=utf-8;base64,`; whitespace in the payload or around it",
        ("normal", "params", "wrapped LF", "wrapped CRLF", "space after comma", "leading space"),
    ),
    37: ("`;BASE64,`, `DATA:Image/PNG;base64,`", ("upper marker", "upper scheme")),
    40: ("no padding", ("no padding",)),
    41: ("`-_` for `+/`; `%2B %2F %3D`", ("urlsafe", "percent")),
    45: ("no type, a wrong type, `text/html`: the bytes decide", ("no mime", "wrong mime jpeg", "text/html")),
}
CASE_OF_INVALID = {
    38: ("no `;base64` marker, for PNG and for SVG", ("no marker", "svg utf8")),
    40: ("a length that cannot be right; too much padding", ("length 1 mod 4", "extra padding")),
    41: ("a character that is no base64", ("garbage char",)),
    42: ("bare base64 as URL; the prefix twice", ("raw base64", "double prefix")),
    45: ("no payload; no comma", ("empty payload", "no comma")),
}


def recorded(cases: dict[int, tuple[str, tuple[str, ...]]], right: Right) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=field_case(number, sent, right), id=name)
            for number, (sent, names) in cases.items()
            for name in names
        ],
    )


def test_every_recorded_data_url_is_sent() -> None:
    sent = [name for cases in (CASE_OF, CASE_OF_INVALID) for _, names in cases.values() for name in names]
    assert sorted(sent) == sorted(RECORDED)


@recorded(CASE_OF, ANSWERED)
def test_accepted_forms(http: httpx.Client, name: str) -> None:
    """The recorded picture, and one whose answer tells that no byte of it was lost on the way."""
    content(http.post(CHAT, json=ask(RECORDED[name], max_tokens=3)))
    form = RECORDED[name].replace(RECORDED["normal"].partition(",")[2], "")
    translate = {"no padding": B64.rstrip("="), "urlsafe": B64.translate(str.maketrans("+/", "-_"))}
    if name == "percent":
        payload = B64.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    elif name.startswith("wrapped"):
        payload = ("\r\n" if "CRLF" in name else "\n").join(B64[at : at + 76] for at in range(0, len(B64), 76))
    else:
        payload = translate.get(name, B64)
    before = form.partition(",")[0]
    space = " " if name == "space after comma" else ""
    assert content(http.post(CHAT, json=ask(f"{before},{space}{payload}"))) == "A red circle."


HINTS = {
    "no marker": "base64",
    "svg utf8": "base64",
    "raw base64": "data:image/",
    "double prefix": "twice",
    "empty payload": "empty",
    "no comma": "comma",
}


@recorded(CASE_OF_INVALID, INVALID)
def test_refused_forms(http: httpx.Client, right: Right, name: str) -> None:
    error = right.check(http.post(CHAT, json=ask(RECORDED[name])), param=PART)
    assert HINTS.get(name, "") in error["message"]


@field_case(38, "`data:image/svg+xml,%3Csvg…`, `data:image/png,%89PNG…`", INVALID)
@pytest.mark.parametrize(
    "url",
    ["data:image/svg+xml,%3Csvg/%3E", "data:image/png,%89PNG%0D%0A", "data:,", "data:", "data:image/png;base64x,AAAA"],
)
def test_percent_encoded_data(http: httpx.Client, right: Right, url: str) -> None:
    right.check(http.post(CHAT, json=ask(url)), param=PART)


@field_case(45, "`data:;base64,` with a picture", ANSWERED)
def test_no_type_at_all(http: httpx.Client) -> None:
    assert content(http.post(CHAT, json=ask(f"data:;base64,{B64}"))) == "A red circle."


@field_case(
    46,
    "one data URL at once and streamed, in a small body and in a large one, as string and as object: the same answer",
    ANSWERED,
)
def test_every_way_to_send_a_picture(http: httpx.Client) -> None:
    url = f"data:image/png;name=a.png;BASE64,{B64}"
    as_string = {"type": "image_url", "image_url": url}
    for body in (ask(url), chat(user(as_string, "What is in this image?"))):
        whole = http.post(CHAT, json=body)
        large = http.post(
            CHAT, content=json.dumps(body).encode() + b" " * 400_000, headers={"content-type": "application/json"}
        )
        assert content(whole) == content(large) == joined(stream(http, body)[1]) == "A red circle."
        assert whole.json()["usage"] == large.json()["usage"]


@field_case(
    46, "a malformed data URL at once and streamed, in a small body and in a large one: the same refusal", INVALID
)
def test_every_way_to_send_a_bad_one(http: httpx.Client, right: Right) -> None:
    body = ask(f"data:image/png;base64,{B64}!")
    told = [
        right.check(response, param=PART)["message"]
        for response in (
            http.post(CHAT, json=body),
            stream(http, body)[0],
            http.post(
                CHAT, content=json.dumps(body).encode() + b" " * 400_000, headers={"content-type": "application/json"}
            ),
        )
    ]
    assert len(set(told)) == 1, told


@field_case(47, "one inline picture of 12.9 MiB (base64: 18 MiB)", ANSWERED)
def test_a_large_inline_picture(http: httpx.Client) -> None:
    data = noise(47, 2125)
    assert 12.8 * 2**20 < len(data) < 13.5 * 2**20
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    response = http.post(CHAT, json=chat(user(image(url), "x"), max_tokens=2))
    content(response)
    assert response.json()["usage"]["prompt_tokens_details"]["images"] == 1


@field_case(47, "one inline picture of more bytes than one may have", Right(413, "media_too_large", "max_item_bytes"))
def test_a_picture_over_the_limit(http: httpx.Client, right: Right) -> None:
    url = f"data:image/png;base64,{base64.b64encode(RED + bytes(33 * 2**20)).decode()}"
    error = right.check(http.post(CHAT, json=chat(user(image(url), "x"))), param=PART)
    assert error["limit"] == 32 * 2**20
    assert error["actual"] >= 33 * 2**20


@field_case(44, "`input_video` with a data URL, with bare base64, without a type: the same video", ANSWERED)
def test_videos_inline(http: httpx.Client) -> None:
    payload = base64.b64encode(shown("red", "red")).decode()
    for data in (f"data:video/mp4;base64,{payload}", payload, f"DATA:;BASE64,{payload}"):
        part = {"type": "input_video", "input_video": {"data": data, "format": "mp4"}}
        response = http.post(CHAT, json=chat(user(part, "What is in this image?")))
        content(response)
        assert response.json()["usage"]["prompt_tokens_details"]["frames"] == 2


@field_case(
    44, "`input_video` with a page as `data:text/html;base64,`, or with garbage", Right(415, "media_unsupported")
)
def test_no_videos_inline(http: httpx.Client, right: Right) -> None:
    page = base64.b64encode(b"<!doctype html><title>x</title>").decode()
    for data in (f"data:text/html;base64,{page}", page, base64.b64encode(b"garbage").decode()):
        part = {"type": "input_video", "input_video": {"data": data}}
        right.check(http.post(CHAT, json=chat(user(part, "x"))), param="messages[0].content[0].input_video")


@field_case(44, "`input_video` with base64 that is none", INVALID)
def test_videos_that_are_no_base64(http: httpx.Client, right: Right) -> None:
    for data in ("data:video/mp4;base64,!!!!", "!!!!", "data:video/mp4,xxxx"):
        part = {"type": "input_video", "input_video": {"data": data}}
        right.check(http.post(CHAT, json=chat(user(part, "x"))), param="messages[0].content[0].input_video")
