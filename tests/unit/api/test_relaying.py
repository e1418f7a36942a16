"""Bodies that are passed on: media are found, everything else keeps its bytes, and nothing gets around the door."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foveate.api import relaying
from foveate.api.convert import Arrival
from foveate.core.document import Document, MediaHole
from foveate.core.errors import FoveateError, InvalidParameter, ModelNotFound
from foveate.core.media import DataRef, InlineRef, NamedRef, UrlRef
from foveate.core.request import ImagePart, Request, VideoPart

ARRIVAL = Arrival("chatcmpl-1", 5.0, ("m", "org/other"))
URL = "https://cdn.example/a.png?sig=1"


def parsed(body: bytes | dict[str, Any], arrival: Arrival = ARRIVAL) -> Request:
    return relaying.chat(body if isinstance(body, bytes) else json.dumps(body).encode(), arrival)


def asking(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **more}


def refused(*parts: Any, **more: Any) -> FoveateError:
    with pytest.raises(FoveateError) as raised:
        parsed(asking(*parts, **more))
    return raised.value


def document(request: Request) -> Document:
    assert request.document is not None
    return request.document


def joined(request: Request) -> bytes:
    """All that was kept, with a mark for each hole."""
    found = document(request)
    content = b"".join(b"<hole>" if isinstance(piece, MediaHole) else piece for piece in found.content)
    return b"{" + found.head + content + b"}"


def test_what_is_not_ours_keeps_its_bytes() -> None:
    body = (
        b'{"tools": [{"type":"function", "function": {"name":"f","parameters":{"x": 1.50, "y":"\\u00e9"}}}],'
        b' "response_format":{"type": "json_object"}, "temperature":1e-1, "vllm_xargs":{"a":[1,2 ]}, "model":"m",'
        b' "messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1",  "x":0}]},'
        b'{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}},"plain"]}]}'
    )
    request = parsed(body)
    kept = joined(request)
    for value in (
        b'[{"type":"function", "function": {"name":"f","parameters":{"x": 1.50, "y":"\\u00e9"}}}]',
        b'{"type": "json_object"}',
        b"1e-1",
        b'{"a":[1,2 ]}',
        b'[{"id":"1",  "x":0}]',
        b'{"data":"UklGRg==","format":"wav"}',
        b'"plain"',
    ):
        assert value in kept
    assert document(request).first.startswith(b'[{"type":"function"')
    again = json.loads(kept)
    whole = json.loads(body)
    del whole["model"]
    assert again == whole


def test_media_become_holes_in_order_and_keep_what_stands_beside_them() -> None:
    image = {
        "type": "image_url",
        "image_url": {"url": URL, "detail": "low", "x": 1},
        "uuid": "mine",
        "cache_control": {},
    }
    request = parsed(
        asking(
            {"type": "text", "text": "a"},
            image,
            {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
            {"type": "image_url", "uuid": "known"},
            {"type": "input_image", "image_url": URL, "detail": "high"},
            {"image_url": URL},
            {"type": "input_video", "input_video": {"data": "AAAA", "fps": 2}},
        )
    )
    first, video, named, responses, bare, inline = request.media
    assert isinstance(first, ImagePart)
    assert (first.ref, first.detail, first.uuid) == (UrlRef(URL), "low", "mine")
    assert isinstance(video, VideoPart)
    assert isinstance(video.ref, DataRef)
    assert named.ref == NamedRef("known")
    assert responses.ref == bare.ref == UrlRef(URL)
    assert inline.ref == DataRef("data:;base64,AAAA")
    holes = [piece for piece in document(request).content if isinstance(piece, MediaHole)]
    assert [hole.index for hole in holes] == list(range(6))
    assert [hole.kind for hole in holes] == ["image_url", "video_url", *["image_url"] * 3, "video_url"]
    assert holes[0].inside == b',"detail":"low","x":1'
    assert holes[0].beside == b',"cache_control":{}'
    assert (holes[3].inside, holes[5].inside) == (b',"detail":"high"', b',"fps":2')
    assert URL.encode() not in joined(request), "no URL of the client's is left"
    assert first.param == "messages[0].content[1].image_url"


def test_a_member_that_stands_twice_stands_once_and_the_last_counts() -> None:
    body = (
        b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://evil"}}]}],'
        b'"messages":[{"role":"user","content":[{"type":"image_url","type":"text","text":"a","text":"b"}]}]}'
    )
    request = parsed(body)
    assert not request.media
    assert joined(request) == b'{"messages":[{"role":"user","content":[{"type":"text","text":"b"}]}]}'


def test_the_model_the_stream_and_the_tokens_are_known() -> None:
    request = parsed(
        asking("hi", model="org/other", stream=True, stream_options={"include_usage": True, "x": 1}, max_tokens=7)
    )
    assert (request.model, request.stream, request.include_usage) == ("org/other", True, True)
    assert request.sampling.tokens_max == 7
    assert document(request).stream_options == b',"x":1'
    assert b"org/other" not in joined(request)
    assert parsed(asking("hi")).model == "m"
    with pytest.raises(ModelNotFound):
        parsed(asking("hi", model="nobody"))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "http://169.254.169.254/"},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"type": "audio_url", "audio_url": {"url": "http://169.254.169.254/"}},
        {"type": "text", "text": "a", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "input_audio", "input_audio": {"data": ""}, "audio_url": "http://169.254.169.254/"},
        {"type": "image_url", "image_url": {"url": URL}, "video_url": {"url": "http://169.254.169.254/"}},
        {"type": "image_pil", "image_pil": "x"},
        {"type": "", "x": 1},
        {"url": "http://169.254.169.254/"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": 7},
        {"type": "image_url", "image_url": {"url": URL}, "uuid": ""},
        7,
    ],
)
def test_ways_around_the_door_are_refused(part: Any) -> None:
    error = refused(part)
    assert error.code in {"invalid_content_part", "invalid_parameter"}
    assert (error.param or "").startswith("messages[0].content[0]")


@pytest.mark.parametrize("name", sorted(relaying.REFUSED))
def test_addresses_and_tensors_of_others_are_not_passed_on(name: str) -> None:
    assert refused("hi", **{name: {"remote_host": "10.0.0.1"}}).param == name
    assert parsed(asking("hi", **{name: None}))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"7", b"{", b'{"messages":{}}', b'{"messages":[]}', b'{"messages":[7]}', b"[" * 9000]
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidParameter):
        parsed(body)


def test_what_a_worker_took_out_is_used_once_and_all_of_it() -> None:
    arrival = Arrival("chatcmpl-1", 5.0, ("m",), inline=1)
    inline = {"type": "image_url", "image_url": {"url": "inline:0"}}
    assert parsed(asking(inline), arrival).media[0].ref == InlineRef(0)
    with pytest.raises(FoveateError):
        parsed(asking(inline, inline), arrival)
    with pytest.raises(InvalidParameter, match="not a content part"):
        parsed(asking("hi", tools=[inline]), arrival)


def test_a_completion_keeps_its_prompt() -> None:
    request = relaying.completion(b'{"prompt":["a", "b"],"echo":true}', ARRIVAL)
    assert (request.kind, joined(request)) == ("completion", b'{"echo":true,"prompt":["a", "b"]}')
