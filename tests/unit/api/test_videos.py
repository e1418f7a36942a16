"""Parts that are videos: their shapes, where their bytes are, and that a request can only lower a limit."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.unit.api.asking import ARRIVAL, parsed, refusal_of
from tests.unit.api.fake import chat, with_parts

from foveate.core.errors import InvalidParameter, InvalidPart, UnsupportedParameter
from foveate.core.media import DataRef, InlineRef, UrlRef
from foveate.core.request import ImagePart, VideoPart

BASE64 = "AAAAIGZ0eXBpc29tAAACAGlzb21pc28yYXZjMW1wNDE="
AT = "messages[0].content[0]"


def video(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url, **fields}}


def sent(data: str, **fields: Any) -> dict[str, Any]:
    return {"type": "input_video", "input_video": {"data": data, **fields}}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (video("https://h/x.mp4"), VideoPart(0, f"{AT}.video_url.url", UrlRef("https://h/x.mp4"))),
        (
            {"type": "video_url", "video_url": "https://h/x.mp4", "uuid": "u"},
            VideoPart(0, f"{AT}.video_url", UrlRef("https://h/x.mp4"), "u"),
        ),
        (
            video(f"data:video/mp4;base64,{BASE64}"),
            VideoPart(0, f"{AT}.video_url.url", DataRef(f"data:video/mp4;base64,{BASE64}")),
        ),
        (
            sent(f"data:video/mp4;base64,{BASE64}"),
            VideoPart(0, f"{AT}.input_video.data", DataRef(f"data:video/mp4;base64,{BASE64}")),
        ),
        (sent(BASE64, format="mp4"), VideoPart(0, f"{AT}.input_video.data", DataRef(f"data:;base64,{BASE64}"))),
        ({**sent("https://h/x"), "uuid": "v"}, VideoPart(0, f"{AT}.input_video.data", UrlRef("https://h/x"), "v")),
    ],
)
def test_shapes(part: dict[str, Any], expected: VideoPart) -> None:
    assert parsed(with_parts(part)).videos == [expected]


def test_media_of_both_kinds_are_counted_together() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://h/p"}}
    request = parsed(with_parts(picture, {"type": "text", "text": "x"}, video("https://h/v"), picture, sent(BASE64)))
    assert [(type(part), part.index) for part in request.media] == [
        (ImagePart, 0),
        (VideoPart, 1),
        (ImagePart, 2),
        (VideoPart, 3),
    ]
    assert request.media[3].param == "messages[0].content[4].input_video.data"


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "video_url"}, f"{AT}.video_url"),
        ({"type": "video_url", "video_url": 5}, f"{AT}.video_url"),
        ({"type": "video_url", "video_url": ""}, f"{AT}.video_url"),
        (video(""), f"{AT}.video_url.url"),
        (video("x.mp4"), f"{AT}.video_url.url"),
        (video(BASE64), f"{AT}.video_url.url"),
        (video("https://h/x", detail="low"), f"{AT}.video_url.detail"),
        (video("https://h/x", num_frames=0), f"{AT}.video_url.num_frames"),
        (video("https://h/x", num_frames=-2), f"{AT}.video_url.num_frames"),
        (video("https://h/x", num_frames=True), f"{AT}.video_url.num_frames"),
        (video("https://h/x", num_frames=1.5), f"{AT}.video_url.num_frames"),
        (video("https://h/x", fps=0), f"{AT}.video_url.fps"),
        (video("https://h/x", fps=-2), f"{AT}.video_url.fps"),
        ({"type": "input_video"}, f"{AT}.input_video"),
        ({"type": "input_video", "input_video": BASE64}, f"{AT}.input_video"),
        (sent(""), f"{AT}.input_video.data"),
        (sent(BASE64, url="https://h"), f"{AT}.input_video.url"),
        ({**video("https://h/x"), "uuid": ""}, f"{AT}.uuid"),
    ],
)
def test_shapes_that_are_refused(part: dict[str, Any], param: str) -> None:
    assert refusal_of(with_parts(part)).param == param


def test_bare_base64_is_told_what_it_lacks() -> None:
    assert "data:video/mp4;base64," in refusal_of(with_parts(video(BASE64))).public


def test_videos_taken_out_of_a_large_body() -> None:
    arrival = msgspec.structs.replace(ARRIVAL, inline=2)
    request = parsed(with_parts(video("inline:0"), sent("inline:1")), arrival=arrival)
    assert [part.ref for part in request.media] == [InlineRef(0), InlineRef(1)]
    assert parsed(with_parts(sent("inline:0"))).media[0].ref == UrlRef("inline:0"), "the URL policy refuses it"


@pytest.mark.parametrize(
    ("own", "all_", "expected"),
    [
        ({}, None, (None, None)),
        ({"num_frames": 8, "fps": 0.5}, None, (8, 0.5)),
        ({}, {"num_frames": 8, "fps": 2}, (8, 2.0)),
        ({"num_frames": 4}, {"num_frames": 8, "fps": 2}, (4, 2.0)),
        ({"num_frames": -1, "fps": -1}, None, (None, None)),
        ({}, {"num_frames": -1}, (None, None)),
        ({"num_frames": None, "fps": None}, {}, (None, None)),
    ],
)
def test_fewer_frames_may_be_asked_for(own: dict[str, Any], all_: dict[str, Any] | None, expected: Any) -> None:
    body = with_parts(video("https://h/x", **own))
    if all_ is not None:
        body["media_io_kwargs"] = {"video": all_}
    (part,) = parsed(body).videos
    assert (part.num_frames, part.fps) == expected


def test_what_else_media_io_kwargs_may_hold() -> None:
    for value in ({}, None, {"video": {}}, {"video": None}, {"image": {}, "audio": None}):
        parsed(chat(media_io_kwargs=value))
    for value, param, kind in (
        ({"image": {"rgba_background_color": [0, 0, 0]}}, "media_io_kwargs.image", UnsupportedParameter),
        ({"video": {"max_duration": 5}}, "media_io_kwargs.video.max_duration", InvalidParameter),
        ({"video": {"num_frames": 0}}, "media_io_kwargs.video.num_frames", InvalidParameter),
        ({"videos": {}}, "media_io_kwargs.videos", InvalidParameter),
        (5, "media_io_kwargs", InvalidParameter),
    ):
        error = refusal_of(chat(media_io_kwargs=value))
        assert (error.param, type(error)) == (param, kind)


def test_numbers_that_are_none() -> None:
    body = json.dumps(with_parts(video("https://h/x", fps=7777))).replace("7777", "NaN").encode()
    error = refusal_of(body)
    assert isinstance(error, InvalidPart)
    assert error.param == f"{AT}.video_url.fps"
