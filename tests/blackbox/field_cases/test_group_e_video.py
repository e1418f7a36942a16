"""Group E: videos that are cut, lie, turn, never end or are none."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import av
import httpx
import numpy as np
import pytest
from tests.blackbox.field_cases.conftest import CHAT
from tests.blackbox.field_cases.listeners import Trap
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.pictures import ask, case, chat, data_url, encoded, one, user
from tests.blackbox.replies import content
from tests.blackbox.server import Server
from tests.blackbox.videos import PART, shown, still, video, video_url, watch
from tests.clips import RED, clip, clip_of, numbered

UNSUPPORTED = Right(415, "media_unsupported")
UNDECODABLE = Right(422, "media_undecodable")


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def frames(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["frames"])


@field_case(18, "a playlist named MP4 that points to a listener and to /etc/passwd, under `video_url`", UNSUPPORTED)
def test_a_playlist_is_no_video(http: httpx.Client, unreached: Trap, right: Right) -> None:
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1.0,\nhttp://127.0.0.1:%d/seg0.ts\n#EXT-X-ENDLIST\n"
    for data in (case("case018_hls_named_mp4.mp4"), playlist % unreached.port):
        error = right.check(http.post(CHAT, json=watch(video_url(data))), param=PART)
        assert "playlist" in error["message"]
        assert "MP4" in error["message"]


@field_case(69, "an MP4 without its last 5 %: the frames that are there", ANSWERED)
def test_a_cut_end_costs_its_own_frames(http: httpx.Client) -> None:
    data = still(one("red", "circle"), 40, muxing={"movflags": "faststart"}, codec="mjpeg", container="mov")
    response = http.post(CHAT, json=watch(video_url(data[: len(data) * 95 // 100]), sampling={"num_frames": 2}))
    assert frames(response) == 2


@field_case(69, "the first third of an MP4", UNDECODABLE)
def test_a_third_of_a_video_does_not_stand_for_it(http: httpx.Client, right: Right) -> None:
    data = numbered(60, codec="mjpeg", container="mov", muxing={"movflags": "faststart"})
    right.check(http.post(CHAT, json=watch(video_url(data[: len(data) // 3]))), param=PART)


@field_case(70, "a WebM and an MP4 as recorded live, without lengths", ANSWERED)
def test_lengths_are_counted_where_headers_have_none(http: httpx.Client) -> None:
    live = shown("red", "red", container="webm", codec="vp8", streamed=True)
    fragmented = shown("red", "red", muxing={"movflags": "frag_keyframe+empty_moov"}, streamed=True)
    for data in (live, fragmented):
        assert frames(http.post(CHAT, json=watch(video_url(data)))) == 2


@field_case(72, "61 s with `fps: 1` and `num_frames: 16`; with `num_frames: 8` alone", ANSWERED)
def test_fps_and_number_of_frames_agree(http: httpx.Client) -> None:
    url = video_url(clip([RED] * 122, fps=2))
    both = http.post(CHAT, json=watch(url, sampling={"fps": 1, "num_frames": 16}, max_tokens=2))
    alone = http.post(CHAT, json=watch(url, sampling={"num_frames": 8}, max_tokens=2))
    assert (frames(both), frames(alone)) == (16, 8)


@field_case(
    73, "a list of 3 frames; the same with `fps`, which a list has not", ANSWERED, Right(400, "invalid_parameter")
)
def test_a_list_of_frames_has_no_times(http: httpx.Client) -> None:
    url = frame_list(3)
    assert frames(http.post(CHAT, json=watch(url, max_tokens=2))) == 3
    error = Right(400, "invalid_parameter").check(http.post(CHAT, json=watch(url, sampling={"fps": 1})), param=PART)
    assert "num_frames" in error["message"]


def frame_list(count: int) -> str:
    bodies = [data_url(encoded(one("red", "circle", seed=seed), "JPEG")).partition(",")[2] for seed in range(count)]
    return "data:video/jpeg;base64," + ",".join(bodies)


@field_case(74, "videos turned by their metadata: seen upright", ANSWERED)
@pytest.mark.parametrize("rotation", [90, -90, 180])
def test_turned_videos_are_answered(http: httpx.Client, rotation: int) -> None:
    response = http.post(CHAT, json=watch(video_url(shown("red", rotation=rotation))))
    assert "red circle" in content(response)


@field_case(76, "AV1, HEVC, VP9, VP8, H.264, MPEG-4 and Motion JPEG in their usual containers", ANSWERED)
@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp4", "av1"),
        ("mp4", "hevc"),
        ("webm", "vp9"),
        ("webm", "vp8"),
        ("mov", "h264"),
        ("avi", "mpeg4"),
        ("avi", "mjpeg"),
    ],
)
def test_every_accepted_coding_is_seen(http: httpx.Client, container: str, codec: str) -> None:
    response = http.post(CHAT, json=watch(video_url(shown("red", container=container, codec=codec))))
    assert "red circle" in content(response)


@field_case(77, "200 frames as `data:video/jpeg`", Right(400, "too_many_frames", "max_video_frames"))
def test_a_list_of_frames_is_bounded(http: httpx.Client, right: Right) -> None:
    url = case("case077_200_frames_video_jpeg.txt").decode().strip()
    error = right.check(http.post(CHAT, json=watch(url)), param=PART)
    assert error["actual"] == 200


@field_case(77, "the same with `media_io_kwargs.video.num_frames: -1`; and with 150", "400; the limit holds")
def test_no_request_lifts_the_limit(http: httpx.Client) -> None:
    url = case("case077_200_frames_video_jpeg.txt").decode().strip()
    for number in (-1, 0):
        response = http.post(CHAT, json=watch(url, media_io_kwargs={"video": {"num_frames": number}}))
        assert response.status_code == 400
    response = http.post(CHAT, json=watch(url, media_io_kwargs={"video": {"num_frames": 150}}))
    Right(400, "too_many_frames", "max_video_frames").check(response, param=PART)


@field_case(78, "10 hours of black in some hundred kilobytes", Right(413, "video_too_long", "max_video_seconds"))
def test_a_long_video_is_refused_unread(http: httpx.Client, right: Right) -> None:
    data = clip_of([np.zeros((16, 16, 3), np.uint8)] * 600, times=[minute * 60.0 for minute in range(600)])
    error = right.check(http.post(CHAT, json=watch(video_url(data))), param=PART)
    assert error["actual"] == pytest.approx(36_000, rel=0.01)


@field_case(79, "a WAV file; an MP4 of sound alone; an MP4 that ends after its file type", UNSUPPORTED)
def test_without_a_video_stream(http: httpx.Client, right: Right) -> None:
    for data in (case("case079_audio_only.wav"), sound(), case("case079_ftyp_only.mp4")):
        right.check(http.post(CHAT, json=watch(video_url(data))), param=PART)


def sound() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("aac", rate=44_100)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 44_100
        file.mux(stream.encode(silence))
        file.mux(stream.encode())
    return out.getvalue()


@field_case(80, "a WebM that announces 2^63 seconds: counted instead", ANSWERED)
def test_a_length_beyond_belief_is_not_believed(http: httpx.Client) -> None:
    data = shown("red", "red", container="webm", codec="vp8")
    at = data.index(b"\x44\x89\x88") + 3
    response = http.post(CHAT, json=watch(video_url(data[:at] + struct.pack(">d", 9.2e18) + data[at + 8 :])))
    assert frames(response) == 2


@field_case(81, "an AVI of MagicYUV; a MOV of JPEG 2000", UNSUPPORTED)
@pytest.mark.parametrize(("container", "codec"), [("avi", "magicyuv"), ("mov", "jpeg2000")])
def test_other_codings_never_reach_a_decoder(http: httpx.Client, right: Right, container: str, codec: str) -> None:
    data = clip([RED], container=container, codec=codec)
    error = right.check(http.post(CHAT, json=watch(video_url(data))), param=PART)
    assert codec in error["message"]
    assert "h264" in error["message"]


@field_case(82, "an MP4 that announces one second and holds 400", Right(413, "video_too_long", "max_video_seconds"))
def test_a_length_that_lies_does_not_help(http: httpx.Client, right: Right) -> None:
    data = bytearray(clip([RED] * 400, fps=1))
    for box in (b"mvhd", b"mdhd"):
        at = data.index(box) + 16
        (scale,) = struct.unpack_from(">I", data, at)
        struct.pack_into(">I", data, at + 4, scale)
    right.check(http.post(CHAT, json=watch(video_url(bytes(data)))), param=PART)


@field_case(83, "a GIF of three frames as a video", ANSWERED)
def test_a_gif_is_a_video_of_its_frames(http: httpx.Client) -> None:
    data = clip([RED, (20, 200, 20), (20, 20, 220)], container="gif", codec="gif")
    assert frames(http.post(CHAT, json=watch(video_url(data, "video/gif"), max_tokens=2))) == 3


@field_case(83, "an MP4 as `image_url`; a PNG as `video_url`", UNSUPPORTED)
def test_media_in_the_wrong_part_are_told_where_they_belong(http: httpx.Client, right: Right) -> None:
    error = right.check(http.post(CHAT, json=ask(video_url(shown("red"), "image/png"))))
    assert "video_url" in error["message"]
    error = right.check(
        http.post(CHAT, json=chat(user(video(data_url(encoded(one("red", "circle")))), "?"))), param=PART
    )
    assert "image_url" in error["message"]
