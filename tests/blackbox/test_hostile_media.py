"""Media that is wrong, broken, extreme or hostile: refused in good form, or answered; never a fault of the server."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from PIL import Image
from tests.blackbox.origins import Origin, body
from tests.blackbox.pictures import CASES, ask, case, chat, data_url, encoded, image, one, url_of, user
from tests.blackbox.replies import assert_no_address, content, refused
from tests.blackbox.server import Server

CHAT = "/v1/chat/completions"
PART = "messages[0].content[0].image_url"


@pytest.fixture(autouse=True)
def still_answers(http: httpx.Client) -> Iterator[None]:
    yield
    assert content(http.post(CHAT, json=ask(url_of(one("red", "circle"))))) == "A red circle."


DATA_URLS = [json.loads(line) for line in (CASES / "case036_data_urls.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("recorded", DATA_URLS, ids=lambda recorded: recorded["name"])
def test_data_urls(http: httpx.Client, recorded: dict[str, str]) -> None:
    response = http.post(CHAT, json=ask(recorded["url"], max_tokens=3))
    expected = recorded["expected"]
    if response.status_code == 200:
        assert expected.startswith("accept") or "accept" in expected, recorded
    else:
        error = refused(response, param=PART)
        assert not expected.startswith("accept") or " or 400" in expected, (recorded, error)


def sent_both_ways(http: httpx.Client, web: Origin, name: str, data: bytes, mime: str) -> list[httpx.Response]:
    """Ask about the same bytes as a data URL and as a fetched one."""
    web.pages[f"/{name}"] = body(data, mime)
    return [http.post(CHAT, json=ask(url, max_tokens=4)) for url in (data_url(data, mime), f"{web.url}/{name}")]


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("case030_html_error_page.jpg", "image/jpeg"),
        ("case030_json_error_body.png", "image/png"),
        ("case061_garbage5.bin", "image/png"),
        ("case065_ftypheic_named.jpg", "image/jpeg"),
        ("case067_external_ref.svg", "image/svg+xml"),
        ("case062_half.jpg", "image/jpeg"),
    ],
)
def test_what_is_no_whole_picture_is_refused(http: httpx.Client, web: Origin, name: str, mime: str) -> None:
    for response in sent_both_ways(http, web, name, case(name), mime):
        error = refused(response, 400, 415, 422, param=PART)
        assert error["code"] in ("media_unsupported", "media_undecodable")
        assert "internal server error" not in error["message"].lower()


def test_heic_is_named(http: httpx.Client) -> None:
    error = refused(http.post(CHAT, json=ask(data_url(case("case065_ftypheic_named.jpg"), "image/jpeg"))))
    assert "HEI" in error["message"].upper()


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


def test_missing_end_marker_is_treated_alike_on_every_path(http: httpx.Client, web: Origin) -> None:
    statuses = {
        response.status_code
        for response in sent_both_ways(http, web, "no_eoi.jpg", case("case062_no_eoi.jpg"), "image/jpeg")
    }
    assert len(statuses) == 1
    assert statuses < {200, 400, 422}


def test_bytes_after_the_picture_do_no_harm(http: httpx.Client) -> None:
    data = encoded(one("red", "circle"), "JPEG", quality=90) + b"garbage" * 100
    assert content(http.post(CHAT, json=ask(data_url(data, "image/jpeg")))) == "A red circle."


EXTREMES = [
    "case055_1x1.png",
    "case055_499x1.png",
    "case057_26x28.png",
    "case057_305x30.png",
    "case057_1608x8_ratio201.png",
    "case058_31x639.png",
    "case084_zeros_150x30.png",
    "case084_zeros_30x150.png",
]


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_shapes_are_answered_or_refused(http: httpx.Client, web: Origin, name: str) -> None:
    for response in sent_both_ways(http, web, name, case(name), "image/png"):
        assert_no_address(response)
        if response.status_code != 200:
            assert refused(response, 400, param=PART)["code"] == "image_shape_unsupported"


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (3, 2), (32768, 2)])
def test_needles(http: httpx.Client, size: tuple[int, int]) -> None:
    response = http.post(CHAT, json=ask(url_of(Image.new("RGB", size, (200, 0, 0))), max_tokens=3))
    assert response.status_code == 200 or refused(response, 400, 413, param=PART)


def peak_bytes(processes: list[psutil.Process]) -> int:
    """Return the sum of the processes' highest resident memory so far."""
    peaks = 0
    for process in processes:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                peaks += int(line.split()[1]) * 1024
    return peaks


@pytest.mark.parametrize("name", ["case059_14000x14000_gray.png", "case059_header_60000x60000.png"])
def test_decompression_bombs_are_refused_by_their_header(
    http: httpx.Client, server: Server, web: Origin, name: str
) -> None:
    content(http.post(CHAT, json=ask(url_of(one("red", "circle")))))
    processes = server.processes()
    before = peak_bytes(processes)
    for response in sent_both_ways(http, web, name, case(name), "image/png"):
        error = refused(response, 413, param=PART)
        assert "0000" in error["message"] or error.get("actual"), error
    assert peak_bytes(processes) - before < 60e6
    assert {process.pid for process in server.processes()} == {process.pid for process in processes}


def test_a_picture_that_lies_about_its_length(http: httpx.Client) -> None:
    """A PNG whose data expands far beyond what its header announces."""
    png = encoded(Image.new("L", (8, 8)))
    start, end = png.index(b"IDAT") - 4, png.index(b"IEND") - 4
    packed = zlib.compress(b"\x00" * 50_000_000, 9)
    chunk = len(packed).to_bytes(4, "big") + b"IDAT" + packed + zlib.crc32(b"IDAT" + packed).to_bytes(4, "big")
    response = http.post(CHAT, json=ask(data_url(png[:start] + chunk + png[end:]), max_tokens=3))
    assert_no_address(response)
    assert response.status_code < 500


def test_svg_is_not_rendered(http: httpx.Client, web: Origin) -> None:
    svg = f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{web.url}/secret.png"/></svg>'.encode()
    web.gets.clear()
    for response in sent_both_ways(http, web, "picture.svg", svg, "image/svg+xml"):
        refused(response, 415, param=PART)
    assert web.gets == {"/picture.svg": 1}


def test_one_bad_picture_among_good_ones(http: httpx.Client) -> None:
    good = image(url_of(one("red", "circle")))
    bad = image(data_url(case("case062_half.jpg"), "image/jpeg"))
    error = refused(
        http.post(CHAT, json=chat(user(good, "x", good, bad, good))), param="messages[0].content[3].image_url"
    )
    assert error.get("part", 3) == 3


def test_avif(http: httpx.Client) -> None:
    content(http.post(CHAT, json=ask(data_url(case("case066_32x32.avif"), "image/avif"))))
