"""Group D: pictures that break decoders: extreme shapes, bombs, rare and foreign formats, damage.

How pictures look (rotation, transparency, colour) is in ``test_as_people_see``, whose tests carry the marks of cases 48 to 53.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from PIL import Image
from tests.blackbox.field_cases.conftest import CHAT
from tests.blackbox.field_cases.listeners import Trap, trap
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.origins import Origin, body
from tests.blackbox.pictures import ask, case, data_url, encoded, one, url_of
from tests.blackbox.replies import assert_no_address, content
from tests.blackbox.server import Server

PART = "messages[0].content[0].image_url"
NO_MEDIA = Right(415, "media_unsupported")
DAMAGED = Right(422, "media_undecodable")
SHAPE = Right(400, "image_shape_unsupported", "side_ratio")


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def both_ways(
    http: httpx.Client, web: Origin, data: bytes, mime: str = "image/png", tokens: int = 4
) -> list[httpx.Response]:
    """Ask about the same bytes as a data URL and as a fetched one."""
    web.pages["/group-d"] = body(data, mime)
    return [http.post(CHAT, json=ask(url, max_tokens=tokens)) for url in (data_url(data, mime), f"{web.url}/group-d")]


def flat(width: int, height: int) -> bytes:
    return encoded(Image.new("RGB", (width, height), (200, 30, 30)))


@field_case(55, "1×1, 2×2, 150×1", ANSWERED)
@field_case(57, "26×28, 305×30, 30×150", ANSWERED)
@field_case(58, "31×639", ANSWERED)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(case("case055_1x1.png"), id="1x1"),
        pytest.param(flat(150, 1), id="150x1"),
        pytest.param(flat(2, 2), id="2x2"),
        pytest.param(case("case057_26x28.png"), id="26x28"),
        pytest.param(case("case057_305x30.png"), id="305x30"),
        pytest.param(case("case058_31x639.png"), id="31x639"),
        pytest.param(case("case084_zeros_150x30.png"), id="150x30"),
        pytest.param(case("case084_zeros_30x150.png"), id="30x150"),
    ],
)
def test_small_and_thin_pictures(http: httpx.Client, web: Origin, data: bytes) -> None:
    for response in both_ways(http, web, data):
        content(response)


@field_case(55, "499×1, 1×499, 1×5000, 5000×1", SHAPE)
@field_case(57, "1608×8 (ratio 201), 32768×2", SHAPE)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(case("case057_1608x8_ratio201.png"), id="1608x8"),
        pytest.param(case("case055_499x1.png"), id="499x1"),
        pytest.param(flat(1, 499), id="1x499"),
        pytest.param(flat(1, 5000), id="1x5000"),
        pytest.param(flat(5000, 1), id="5000x1"),
        pytest.param(flat(32768, 2), id="32768x2"),
    ],
)
def test_shapes_that_the_processor_refuses(http: httpx.Client, web: Origin, right: Right, data: bytes) -> None:
    for response in both_ways(http, web, data):
        error = right.check(response, param=PART)
        assert "200" in error["message"]


def peak_bytes(processes: list[psutil.Process]) -> int:
    """Return the sum of the processes' highest resident memory so far."""
    peaks = 0
    for process in processes:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                peaks += int(line.split()[1]) * 1024
    return peaks


def header_of(width: int, height: int, form: str) -> bytes:
    """Return a file whose header announces this size, with hardly anything behind it."""
    small = bytearray(encoded(Image.new("RGB", (16, 16)), form))
    if form == "GIF":
        small[6:10] = struct.pack("<HH", width, height)
    elif form == "BMP":
        small[18:26] = struct.pack("<ii", width, height)
    elif form == "JPEG":
        at = small.index(b"\xff\xc0") + 5
        small[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(small)


PIXELS = Right(413, "image_too_large", "media.decode_pixels_max")
TIER = Right(413, "image_too_large", "max_image_pixels")
WIDTH = Right(413, "image_too_large", "max_image_width")


@pytest.mark.parametrize(
    ("data", "mime", "right"),
    [
        pytest.param(data, mime, right, id=name, marks=field_case(59, sent, right))
        for right, sent, bombs in (
            (PIXELS, "196 Mpx in 219 KB", [("14000x14000", case("case059_14000x14000_gray.png"), "image/png")]),
            (
                PIXELS,
                "66 bytes that announce 60000×60000",
                [("60000x60000", case("case059_header_60000x60000.png"), "image/png")],
            ),
            (
                PIXELS,
                "headers of GIF, JPEG and BMP that announce as much",
                [
                    ("gif", header_of(65535, 65535, "GIF"), "image/gif"),
                    ("jpeg", header_of(60000, 60000, "JPEG"), "image/jpeg"),
                    ("bmp", header_of(20000, 20000, "BMP"), "image/bmp"),
                ],
            ),
            (TIER, "a header of 9000×9000", [("9000x9000", header_of(9000, 9000, "BMP"), "image/bmp")]),
            (WIDTH, "a header of 40000×300", [("40000x300", header_of(40000, 300, "BMP"), "image/bmp")]),
        )
        for name, data, mime in bombs
    ],
)
def test_bombs_are_refused_by_their_header(
    http: httpx.Client, server: Server, web: Origin, data: bytes, mime: str, right: Right
) -> None:
    content(http.post(CHAT, json=ask(url_of(one("red", "circle")))))
    processes = server.processes()
    before = peak_bytes(processes)
    for response in both_ways(http, web, data, mime):
        error = right.check(response, param=PART)
        assert error["actual"] > error["limit"]
        assert str(error["limit"]) in error["message"].replace(",", "")
    assert peak_bytes(processes) - before < 60e6
    assert {process.pid for process in server.processes()} == {process.pid for process in processes}


@field_case(
    59, "a GIF and a WebP of 1,200 frames of one pixel", Right(400, "too_many_frames", "media.animation_frames_max")
)
@pytest.mark.parametrize("form", ["GIF", "WEBP"])
def test_animations_of_very_many_frames(http: httpx.Client, web: Origin, right: Right, form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    frames = [Image.new("RGB", (1, 1), (number % 256, number // 256, 0)) for number in range(1200)]
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:], duration=20, **options)
    assert getattr(Image.open(io.BytesIO(data)), "n_frames", 1) == 1200
    for response in both_ways(http, web, data, f"image/{form.lower()}"):
        error = right.check(response, param=PART)
        assert (error["limit"], error["actual"]) == (1000, 1200)


RARE = {
    "FITS": b"SIMPLE  =                    T" + b" " * 50 + b"BITPIX  =                    8",
    "PSD": b"8BPS\x00\x01" + b"\x00" * 6 + b"\x00\x03" + b"\x00\x00\x00\x10" * 2 + b"\x00\x08\x00\x03",
    "ICO": b"\x00\x00\x01\x00\x01\x00\x10\x10\x00\x00\x01\x00\x20\x00\x68\x04\x00\x00\x16\x00\x00\x00",
    "CUR": b"\x00\x00\x02\x00\x01\x00\x10\x10\x00\x00\x01\x00\x20\x00\x68\x04\x00\x00\x16\x00\x00\x00",
    "MCIDAS": b"\x00\x00\x00\x00\x00\x00\x00\x04" + b"\x00" * 248,
    "PCX": b"\x0a\x05\x01\x08" + b"\x00" * 124,
    "SGI": b"\x01\xda\x01\x01\x00\x02\x00\x10\x00\x10\x00\x01" + b"\x00" * 500,
    "ICNS": b"icns\x00\x00\x01\x00ic07\x00\x00\x00\xf8",
    "JP2": b"\x00\x00\x00\x0cjP  \r\n\x87\n\x00\x00\x00\x14ftypjp2 \x00\x00\x00\x00jp2 ",
    "J2K": b"\xff\x4f\xff\x51\x00\x29\x00\x00",
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    "WMF": b"\xd7\xcd\xc6\x9a\x00\x00",
    "DDS": b"DDS |\x00\x00\x00",
    "XBM": b"#define im_width 16\n#define im_height 16\n",
    "PPM": b"P6 16 16 255\n" + b"\x00" * 768,
    "TGA": b"\x00\x00\x02" + b"\x00" * 9 + b"\x10\x00\x10\x00\x18\x00" + b"\x00" * 768,
    "JXL": b"\x00\x00\x00\x0cJXL \r\n\x87\n",
    "HDF5": b"\x89HDF\r\n\x1a\n" + b"\x00" * 100,
    "FLI": b"\x00\x01\x00\x00\x11\xaf" + b"\x00" * 122,
    "SPIDER": struct.pack(">27f", *([1.0] * 27)),
}


@field_case(
    60,
    "FITS, PSD, ICO, McIdas, PCX, SGI, ICNS, EPS, WMF, TGA, … : no decoder sees them; what is accepted is named",
    NO_MEDIA,
)
@field_case(68, "JPEG 2000, in a file and as a bare code stream", NO_MEDIA)
@pytest.mark.parametrize("name", RARE)
def test_rare_formats(http: httpx.Client, web: Origin, right: Right, name: str) -> None:
    for response in both_ways(http, web, RARE[name], "image/png"):
        error = right.check(response, param=PART)
        for accepted in ("JPEG", "PNG", "WebP"):
            assert accepted.lower() in error["message"].lower()


@field_case(68, "a real JPEG 2000 picture, eight times at once", NO_MEDIA)
def test_jpeg_2000_at_once(server: Server, right: Right) -> None:
    data = encoded(Image.effect_noise((256, 256), 40), "JPEG2000")

    def send(_: int) -> httpx.Response:
        with server.client() as client:
            return client.post(CHAT, json=ask(data_url(data, "image/jp2")))

    with ThreadPoolExecutor(8) as pool:
        for response in pool.map(send, range(8)):
            right.check(response, param=PART)


@field_case(
    61,
    "five bytes of garbage: no address in body, headers or events; other errors of all tests are held to the same",
    NO_MEDIA,
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_garbage(http: httpx.Client, web: Origin, right: Right, streamed: bool) -> None:
    data = case("case061_garbage5.bin")
    web.pages["/garbage"] = body(data)
    for url in (data_url(data), f"{web.url}/garbage"):
        response = http.post(CHAT, json=ask(url, stream=streamed))
        assert_no_address(response)
        right.check(response, param=PART)


JPEG = encoded(one("red", "circle"), "JPEG", quality=90)


@field_case(62, "half a JPEG", DAMAGED)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(case("case062_half.jpg"), id="half"),
        pytest.param(JPEG[: len(JPEG) // 2], id="half of ours"),
    ],
)
def test_cut_jpegs(http: httpx.Client, web: Origin, right: Right, data: bytes) -> None:
    for response in both_ways(http, web, data, "image/jpeg"):
        right.check(response, param=PART)


@field_case(62, "nine tenths of a JPEG, where the operator accepts truncated pictures", ANSWERED)
def test_cut_jpegs_where_they_are_accepted(guarded: Server) -> None:
    with guarded.client() as client:
        cut = data_url(JPEG[: len(JPEG) * 9 // 10], "image/jpeg")
        # What is missing is grey, which the model may take for a shape of its own: the question is about what is there.
        assert content(client.post(CHAT, json=ask(cut, "What colour is the circle?"))) == "The circle is red."


@field_case(62, "a JPEG that lacks nothing but its end marker", ANSWERED)
def test_missing_end_marker(http: httpx.Client, web: Origin) -> None:
    for response in both_ways(http, web, case("case062_no_eoi.jpg"), "image/jpeg"):
        content(response)
    for response in both_ways(http, web, JPEG[:-2], "image/jpeg", tokens=24):
        assert content(response) == "A red circle."


@field_case(62, "a JPEG followed by garbage", ANSWERED)
def test_bytes_after_the_picture(http: httpx.Client, web: Origin) -> None:
    for response in both_ways(http, web, JPEG + b"garbage" * 100, "image/jpeg", tokens=24):
        assert content(response) == "A red circle."


@field_case(65, "HEIC as `image/jpeg`, brands heic, heix, mif1: named as what it is", NO_MEDIA)
@pytest.mark.parametrize("brand", [b"heic", b"heix", b"hevc", b"mif1", b"msf1"])
def test_heic(http: httpx.Client, web: Origin, right: Right, brand: bytes) -> None:
    data = case("case065_ftypheic_named.jpg").replace(b"heic", brand)
    for response in both_ways(http, web, data, "image/jpeg"):
        error = right.check(response, param=PART)
        assert "HEI" in error["message"].upper()


@field_case(65, "brand mp42 under `image_url`: not a picture", NO_MEDIA)
def test_video_as_picture(http: httpx.Client, web: Origin, right: Right) -> None:
    for data in (
        case("case079_ftyp_only.mp4"),
        b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00mp42isom" + b"\x00" * 64,
    ):
        for response in both_ways(http, web, data, "image/jpeg"):
            right.check(response, param=PART)


@field_case(66, "a 32×32 AVIF", ANSWERED)
def test_avif(http: httpx.Client, web: Origin) -> None:
    for response in both_ways(http, web, case("case066_32x32.avif"), "image/avif"):
        content(response)
    shape = encoded(one("red", "circle"), "AVIF", quality=90)
    assert content(http.post(CHAT, json=ask(data_url(shape, "image/jpeg")))) == "A red circle."


@pytest.fixture(scope="module")
def outside() -> Iterator[Trap]:
    with trap(("127.0.0.1", 0)) as made:
        yield made


@field_case(
    67, "SVG with an external reference and an entity, PDF, HTML: nothing is rendered, nobody is asked", NO_MEDIA
)
@pytest.mark.parametrize(
    "data",
    [
        case("case067_external_ref.svg"),
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='http://127.0.0.1:{port}/'/></svg>",
        b"<?xml version='1.0'?><!DOCTYPE svg [<!ENTITY x SYSTEM 'http://127.0.0.1:{port}/x'>]><svg>&x;</svg>",
        b"\xef\xbb\xbf \n<!-- --><svg><use href='http://127.0.0.1:{port}/'/></svg>",
        b"%PDF-1.4\n1 0 obj<</URI(http://127.0.0.1:{port}/)>>endobj",
        b"<html><img src='http://127.0.0.1:{port}/x'></html>",
    ],
    ids=["recorded svg", "svg", "svg entity", "svg after a comment", "pdf", "html"],
)
@pytest.mark.parametrize("mime", ["image/svg+xml", "image/png"])
def test_documents(http: httpx.Client, web: Origin, outside: Trap, right: Right, data: bytes, mime: str) -> None:
    for response in both_ways(http, web, data.replace(b"{port}", str(outside.port).encode()), mime):
        right.check(response, param=PART)
    assert outside.connections == 0


@field_case(53, "16-bit grey as PNG, TIFF; 32-bit float as TIFF", ANSWERED)
def test_deep_pictures_are_answered(http: httpx.Client, web: Origin) -> None:
    ramp = Image.open(io.BytesIO(case("case053_ramp16.png")))
    for data in (case("case053_ramp16.png"), encoded(ramp, "TIFF"), encoded(ramp.convert("F"), "TIFF")):
        for response in both_ways(http, web, data):
            content(response)
