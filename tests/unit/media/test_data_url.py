"""Nothing is silently corrupted: what is accepted decodes to the very bytes that were encoded. Field cases 36 to 45."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.errors import DataUrlInvalid
from foveate.media.data_url import decode_data_url, decode_data_url_into, is_data_url
from foveate.media.frame_list import frame_places

CASES = [json.loads(line) for line in Path("tests/data/cases/case036_data_urls.jsonl").read_text("utf-8").splitlines()]
PNG = decode_data_url(CASES[0]["url"])
REFUSED = {
    "length 1 mod 4", "empty payload", "no comma", "no marker", "double prefix", "raw base64", "garbage char",
    "extra padding", "svg utf8",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_field_cases(case: dict[str, str]) -> None:
    if case["name"] in REFUSED:
        with pytest.raises(DataUrlInvalid):
            decode_data_url(case["url"])
    else:
        assert decode_data_url(case["url"]) == PNG


@given(st.binary(min_size=1, max_size=200))
def test_every_accepted_spelling_gives_the_same_bytes(data: bytes) -> None:
    plain = base64.b64encode(data).decode()
    folded = "\r\n ".join(plain[at : at + 76] for at in range(0, len(plain), 76))
    safe = base64.urlsafe_b64encode(data).decode()
    for payload in (plain, plain.rstrip("="), folded, safe, safe.rstrip("="), quote(plain, safe=""), f" {plain}\n"):
        assert decode_data_url(f"data:image/png;base64,{payload}") == data


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_plus_that_became_a_space_is_refused(data: bytes, draw: st.DataObject) -> None:
    plain = base64.b64encode(data).decode().rstrip("=")
    at = draw.draw(st.integers(min_value=1, max_value=max(len(plain) - 1, 1)))
    if at < len(plain):
        with pytest.raises(DataUrlInvalid):
            decode_data_url("data:;base64," + plain[:at] + " " + plain[at + 1 :] + "AAAA")


@pytest.mark.parametrize("filler", [" ", "\t", " \t", "%20", "%09", " \n", "\t\r", "\n", "%0A%20", "=", "-", "A ", "%"])
def test_a_payload_of_any_filler_is_decoded_or_refused_within_the_time_of_a_test(filler: str) -> None:
    # A small body is decoded on the event loop. What costs its square would take hours for a payload of this size.
    for head, tail in (("AAAA", "AAAA"), ("AAAA", "\nAAAA"), ("", "AAAA"), ("AAAA", "")):
        url = f"data:image/png;base64,{head}{filler * (400_000 // len(filler))}{tail}"
        try:
            decoded = decode_data_url(url)
        except DataUrlInvalid:
            continue
        assert decoded == bytes(3 * len(head + tail.strip()) // 4) or filler in "-A "


def test_a_space_within_a_line_is_refused_wherever_the_line_breaks_are() -> None:
    for payload in ("AA AA", "AAAA\nAA AA", "AAAA\n AA\tAA\n", "A A\nAA", "AAAA AAAA\n"):
        with pytest.raises(DataUrlInvalid, match="not base64"):
            decode_data_url(f"data:;base64,{payload}")
    for payload in ("AA\nAA", " AA \r\n\tAA ", "A\n \n \nAAA", "A%20%0D%0AAAA"):
        assert decode_data_url(f"data:;base64,{payload}") == bytes(3)


@given(st.text(alphabet="%0aA=bF3", max_size=40))
def test_escapes_mean_what_the_standard_library_says(payload: str) -> None:
    if not re.search("%(?![0-9a-fA-F]{2})", payload):
        plain = unquote(payload, "latin-1")
        assert _outcome(f"data:;base64,{payload}") == _outcome(f"data:;base64,{plain}") or "%" in plain
    else:
        assert _outcome(f"data:;base64,{payload}") is None


def _outcome(url: str) -> bytes | None:
    try:
        return decode_data_url(url)
    except DataUrlInvalid:
        return None


@given(st.text(max_size=80))
def test_any_text_decodes_or_is_refused(text: str) -> None:
    for candidate in (text, f"data:{text}", f"data:image/png;base64,{text}"):
        try:
            assert decode_data_url(candidate)
        except DataUrlInvalid:
            continue


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("iVBORw0KGgoAAAANSUhEUgAAAAQAAAAECAIAAAAmkwkpAAAAPUlE", "bare base64"),
        ("data:image/png;base64,DATA:image/png;base64,AAAA", "twice"),
        ("data:image/svg+xml,%3Csvg", "Only base64"),
        ("data:image/png;base64,", "empty"),
        ("data:,", "Only base64"),
        ("https://x/", "not a data URL"),
    ],
)
def test_says_what_is_wrong(url: str, hint: str) -> None:
    with pytest.raises(DataUrlInvalid, match=hint):
        decode_data_url(url)


def test_decodes_into_given_memory() -> None:
    out = memoryview(bytearray(8))
    assert decode_data_url_into("data:;base64,QUJD", out) == 3
    assert bytes(out) == b"ABC\0\0\0\0\0"
    with pytest.raises(ValueError, match="fit"):
        decode_data_url_into("data:;base64,QUJD", out[:2])


def test_knows_a_data_url() -> None:
    assert is_data_url(" DaTa:x")
    assert not is_data_url("database:x")
    assert not is_data_url("https://data:80/")


def test_a_list_of_frames_becomes_one_piece() -> None:
    frames = [b"\xff\xd8 one more frame \xff\xd9", b"\xff\xd8 another frame \xff\xd9"]
    url = "data:VIDEO/JPEG;base64," + ",".join(base64.b64encode(frame).decode() for frame in frames)
    data = memoryview(decode_data_url(url))
    assert [bytes(data[at : at + size]) for at, size in frame_places(data)] == frames


def test_the_field_case_of_200_frames_is_taken_apart() -> None:
    text = Path("tests/data/cases/case077_200_frames_video_jpeg.txt").read_text().strip()
    data = memoryview(decode_data_url(text))
    places = frame_places(data)
    assert len(places) == 200
    assert all(bytes(data[at : at + 2]) == b"\xff\xd8" for at, _ in places)


@pytest.mark.parametrize("payload", ["", ",", "AAAA", "A" * 24 + ",,", "A" * 24 + ",%%%%"])
def test_a_list_with_a_bad_frame_is_refused(payload: str) -> None:
    with pytest.raises(DataUrlInvalid):
        decode_data_url("data:video/jpeg;base64," + payload)
