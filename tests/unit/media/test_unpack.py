"""Inline pictures leave the body whatever shape it has, and no client can name a picture that is not in its place."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from blake3 import blake3

from foveate.core.errors import BodyTooLarge, DataUrlInvalid, ErrorRecord, InvalidParameter, UrlRefused
from foveate.core.limits import SKELETON_BYTES_MAX
from foveate.media.unpack import InlineBlob, Unpacking, unpack


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def body_of(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def run(body: Any) -> tuple[Unpacking, Any, memoryview]:
    text = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    out = memoryview(bytearray(len(text)))
    result = unpack(memoryview(text), out)
    return result, json.loads(result.skeleton), out


def taken(result: Unpacking, out: memoryview) -> list[bytes]:
    blobs = [blob for blob in result.blobs if isinstance(blob, InlineBlob)]
    assert all(blake3(out[blob.offset : blob.offset + blob.size]).hexdigest() == blob.digest for blob in blobs)
    return [bytes(out[blob.offset : blob.offset + blob.size]) for blob in blobs]


def test_takes_pictures_out_in_order_and_leaves_the_rest_alone() -> None:
    first, second = b"\xff" * 1000, bytes(range(256))
    text = {"type": "text", "text": 'quote " and \u00e4 \U0001f600 and data:image/png;base64,AAAA'}
    body = body_of(
        text, picture(data_url(first)), picture("https://h/x.png"), picture(data_url(second)), seed=1 << 70, t=0.1
    )
    result, skeleton, out = run(body)
    assert taken(result, out) == [first, second]
    expected = body_of(text, picture("inline:0"), picture("https://h/x.png"), picture("inline:1"), seed=1 << 70, t=0.1)
    assert skeleton == expected


def test_takes_videos_out_in_all_their_forms() -> None:
    bare = base64.b64encode(b"four").decode()
    shapes = [
        {"type": "video_url", "video_url": {"url": data_url(b"one")}},
        {"type": "video_url", "video_url": data_url(b"two")},
        {"type": "input_video", "input_video": {"data": data_url(b"three")}},
        {"type": "input_video", "input_video": {"data": bare}},
        {"type": "input_video", "input_video": {"data": "https://h/x"}},
        {"type": "input_video", "input_video": {"data": "inline:0"}},
        {"type": "input_video", "input_video": {"data": "bare!"}},
        {"type": "input_video", "input_video": bare},
    ]
    result, skeleton, out = run(body_of(*shapes))
    assert taken(result, out) == [b"one", b"two", b"three", b"four"]
    errors = [blob.error() for blob in result.blobs if isinstance(blob, ErrorRecord)]
    assert [type(error) for error in errors] == [UrlRefused, DataUrlInvalid]
    parts = skeleton["messages"][0]["content"]
    assert [part[part["type"]] for part in parts] == [
        {"url": "inline:0"},
        "inline:1",
        {"data": "inline:2"},
        {"data": "inline:3"},
        {"data": "https://h/x"},
        {"data": "inline:4"},
        {"data": "inline:5"},
        bare,
    ]


def test_takes_the_string_form_and_every_nested_place() -> None:
    body = {
        "messages": [
            {"role": "tool", "content": [{"type": "image_url", "image_url": data_url(b"one")}]},
            {"role": "user", "content": {"deep": [{"image_url": {"url": data_url(b"two")}}]}},
        ],
        "extra": {"image_url": data_url(b"three")},
    }
    result, skeleton, out = run(body)
    assert taken(result, out) == [b"one", b"two", b"three"]
    assert skeleton["messages"][0]["content"][0]["image_url"] == "inline:0"
    assert skeleton["extra"]["image_url"] == "inline:2"


def test_understands_every_json_spelling_of_a_url() -> None:
    data = bytes(range(256)) * 3
    escaped = json.dumps(body_of(picture(data_url(data)))).replace("/", "\\/").replace("data:", "\\u0064ata:")
    result, skeleton, out = run(escaped.encode())
    assert taken(result, out) == [data]
    assert skeleton == body_of(picture("inline:0"))


def test_the_same_picture_twice_is_two_entries_with_one_digest() -> None:
    result, _, out = run(body_of(picture(data_url(b"same")), picture(data_url(b"same"))))
    assert taken(result, out) == [b"same", b"same"]


def test_a_malformed_data_url_is_an_entry_not_the_end() -> None:
    result, skeleton, out = run(body_of(picture("data:image/png;base64,A"), picture(data_url(b"good"))))
    bad = result.blobs[0]
    assert isinstance(bad, ErrorRecord)
    assert isinstance(bad.error(), DataUrlInvalid)
    assert taken(result, out) == [b"good"]
    assert skeleton == body_of(picture("inline:0"), picture("inline:1"))


@pytest.mark.parametrize("spelling", ["inline:0", " INLINE:0", "inline:1", "inline:"])
def test_a_client_cannot_name_somebody_elses_picture(spelling: str) -> None:
    result, skeleton, _ = run(body_of(picture(data_url(b"mine")), picture(spelling)))
    refused = result.blobs[1]
    assert isinstance(refused, ErrorRecord)
    assert isinstance(refused.error(), UrlRefused)
    assert skeleton == body_of(picture("inline:0"), picture("inline:1"))


def test_repeated_members_leave_one_meaning() -> None:
    text = b'{"image_url": "inline:0", "image_url": "%s"}' % data_url(b"last").encode()
    result, skeleton, out = run(text)
    assert skeleton == {"image_url": "inline:0"}
    assert taken(result, out) == [b"last"]


def test_other_shapes_pass_untouched_for_the_api_to_judge() -> None:
    for body in (
        [],
        5,
        None,
        {"messages": None},
        body_of({"type": "image_url", "image_url": None}),
        body_of(picture("")),
    ):
        result, skeleton, _ = run(body)
        assert skeleton == body
        assert result.blobs == []
    for url in (5, None, [], {}):
        assert run(body_of({"image_url": {"url": url}}))[1] == body_of({"image_url": {"url": url}})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"nope",
        b'{"a":1} x',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":NaN}',
        b'{"a":1e999}',
    ],
)
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidParameter) as caught:
        run(text)
    assert caught.value.public == "The request body is not valid JSON."


def test_a_body_too_large_without_its_pictures_is_refused() -> None:
    with pytest.raises(BodyTooLarge):
        run(body_of({"type": "text", "text": "x" * SKELETON_BYTES_MAX}))


def test_as_much_room_as_the_body_has_suffices() -> None:
    """A list of frames keeps their lengths, and so can need more than three quarters of its base64."""
    frames = "data:video/jpeg;base64," + ",".join(["A" * 22] * 500)
    urls = [data_url(b"x" * size) for size in (1, 2, 3, 100, 1000)]
    text = json.dumps(body_of(*map(picture, urls), {"type": "video_url", "video_url": {"url": frames}})).encode()
    out = memoryview(bytearray(len(text)))
    result = unpack(memoryview(text), out)
    sizes = [blob.size for blob in result.blobs if isinstance(blob, InlineBlob)]
    assert sizes[:5] == [1, 2, 3, 100, 1000]
    assert sizes[5] > 500 * 20


def test_takes_embeddings_out_in_both_forms() -> None:
    bare = base64.b64encode(b"rows").decode()
    plain = {"type": "image_embeds", "image_embeds": bare}
    object_ = {"type": "image_embeds", "image_embeds": {"image_embeds": data_url(b"more"), "image_grid_thw": [1, 2, 2]}}
    result, skeleton, out = run(body_of(plain, object_))
    assert taken(result, out) == [b"rows", b"more"]
    parts = skeleton["messages"][0]["content"]
    assert parts[0]["image_embeds"] == "inline:0"
    assert parts[1]["image_embeds"] == {"image_embeds": "inline:1", "image_grid_thw": [1, 2, 2]}


def test_embeddings_that_name_a_place_of_ours() -> None:
    shapes = [
        {"type": "image_embeds", "image_embeds": "inline:0"},
        {"type": "image_embeds", "image_embeds": {"type": "image_embeds", "image_embeds": "AAAA"}},
    ]
    for shape in shapes:
        result, _, _ = run(body_of(shape))
        assert isinstance(result.blobs[-1], ErrorRecord)
        assert result.blobs[-1].code == UrlRefused.code
