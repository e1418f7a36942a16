"""Media that is wrong, broken or extreme in ways of our own: refused in good form, or answered; never a fault of the server.

What people met in the field is in ``field_cases``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import httpx
import pytest
from PIL import Image
from tests.blackbox.origins import Origin, body
from tests.blackbox.pictures import ask, case, chat, data_url, encoded, image, one, url_of, user
from tests.blackbox.replies import assert_no_address, content, refused

CHAT = "/v1/chat/completions"
PART = "messages[0].content[0].image_url"


@pytest.fixture(autouse=True)
def still_answers(http: httpx.Client) -> Iterator[None]:
    yield
    assert content(http.post(CHAT, json=ask(url_of(one("red", "circle"))))) == "A red circle."


def sent_both_ways(http: httpx.Client, web: Origin, name: str, data: bytes, mime: str) -> list[httpx.Response]:
    """Ask about the same bytes as a data URL and as a fetched one."""
    web.pages[f"/{name}"] = body(data, mime)
    return [http.post(CHAT, json=ask(url, max_tokens=4)) for url in (data_url(data, mime), f"{web.url}/{name}")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"%PDF-1.4\n",
        b"GIF89a",
        b"\xff\xd8\xff",
        b"RIFF\x00\x00\x00\x00WEBPVP8 ",
        b"BM",
        b"II*\x00",
        b"\x89PNG\r\n\x1a\n",
    ],
)
def test_stumps(http: httpx.Client, web: Origin, data: bytes) -> None:
    for response in sent_both_ways(http, web, "stump", data, "image/png"):
        refused(response, 400, 415, 422, param=PART)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "AVIF"])
def test_cut_anywhere(http: httpx.Client, form: str) -> None:
    whole = encoded(one("red", "circle"), form)
    for part in (0.05, 0.4, 0.9):
        response = http.post(CHAT, json=ask(data_url(whole[: int(len(whole) * part)], f"image/{form.lower()}")))
        assert_no_address(response)
        assert response.status_code == 200 or refused(response, 400, 415, 422, param=PART)
        # A cut file is refused; one that lacks only its tail may be answered, but not as something else.
        assert response.status_code != 200 or part == 0.9, part


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (3, 2), (32768, 2)])
def test_needles(http: httpx.Client, size: tuple[int, int]) -> None:
    response = http.post(CHAT, json=ask(url_of(Image.new("RGB", size, (200, 0, 0))), max_tokens=3))
    assert response.status_code == 200 or refused(response, 400, 413, param=PART)


def test_a_picture_that_lies_about_its_length(http: httpx.Client) -> None:
    """A PNG whose data expands far beyond what its header announces."""
    png = encoded(Image.new("L", (8, 8)))
    start, end = png.index(b"IDAT") - 4, png.index(b"IEND") - 4
    packed = zlib.compress(b"\x00" * 50_000_000, 9)
    chunk = len(packed).to_bytes(4, "big") + b"IDAT" + packed + zlib.crc32(b"IDAT" + packed).to_bytes(4, "big")
    response = http.post(CHAT, json=ask(data_url(png[:start] + chunk + png[end:]), max_tokens=3))
    assert_no_address(response)
    assert response.status_code < 500


def test_one_bad_picture_among_good_ones(http: httpx.Client) -> None:
    good = image(url_of(one("red", "circle")))
    bad = image(data_url(case("case062_half.jpg"), "image/jpeg"))
    error = refused(
        http.post(CHAT, json=chat(user(good, "x", good, bad, good))), param="messages[0].content[3].image_url"
    )
    assert error.get("part", 3) == 3
