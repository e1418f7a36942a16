"""Videos as clients send them: fetched, inline, streamed; seen in order, counted, logged, cached, and within their budget."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import numpy as np
import openai
import pytest
from tests.blackbox.origins import Origin, body
from tests.blackbox.pictures import chat, image, one, url_of, user
from tests.blackbox.replies import assert_closes, content, refused, server_timing, stream
from tests.blackbox.server import Server
from tests.blackbox.videos import PART, shown, video, video_url, watch
from tests.clips import clip_of

CHAT = "/v1/chat/completions"
BOTH = "Describe both images."


def test_a_fetched_video_is_seen_in_order_and_its_stages_close(server: Server, http: httpx.Client, web: Origin) -> None:
    web.pages["/clip.mp4"] = body(shown("blue", "red", seed=11), "video/mp4")
    response = http.post(CHAT, json=watch(f"{web.url}/clip.mp4", BOTH))

    first, _, second = content(response).partition("Second")
    assert "blue circle" in first
    assert "red circle" in second
    timing = server_timing(response)
    assert_closes(timing)
    assert {"media_fetch", "media_decode", "mm_processor", "vision_encode"} <= timing.keys()
    assert web.gets["/clip.mp4"] == 1
    details = response.json()["usage"]["prompt_tokens_details"]
    assert (details["images"], details["frames"], details["image_tokens"]) == (0, 2, 128)
    record = server.record(response.headers["x-request-id"])
    assert (record["videos"], record["frames"], record["images"]) == (1, 2, 0)
    assert record["video_seconds"] == pytest.approx(2.0, abs=0.1)
    assert record["pixels"] == 2 * 224 * 224
    assert [item["index"] for item in record["items"]] == [0]


def test_a_large_inline_video_is_unpacked(http: httpx.Client) -> None:
    grain = np.random.default_rng(3).integers(0, 30, (224, 224, 3), np.uint8)
    picture = np.asarray(one("red", "circle")).astype(np.int16) - grain
    data = clip_of([picture.clip(0, 255).astype(np.uint8)] * 100, fps=1, codec="mjpeg", container="avi")
    assert len(data) > 256 * 1024  # so the body goes through a media worker

    response = http.post(CHAT, json=watch(video_url(data, "video/x-msvideo"), sampling={"num_frames": 1}))

    assert "red circle" in content(response)


def test_a_repeated_video_is_not_worked_on_again(http: httpx.Client) -> None:
    url = video_url(shown("green", "red", seed=12))
    first, second = (http.post(CHAT, json=watch(url, BOTH)) for _ in range(2))

    assert content(first) == content(second)
    assert "vision_encode" in server_timing(first)
    assert not {"mm_processor", "vision_encode"} & server_timing(second).keys()


def test_pictures_and_a_video_in_one_request(http: httpx.Client) -> None:
    clip = video(video_url(shown("blue")))
    response = http.post(CHAT, json=chat(user(image(url_of(one("red", "circle"))), clip, BOTH)))

    first, _, second = content(response).partition("Second")
    assert "red circle" in first
    assert "blue circle" in second
    details = response.json()["usage"]["prompt_tokens_details"]
    assert (details["images"], details["frames"]) == (1, 1)


def test_the_official_client_streams_about_a_video(ai: openai.OpenAI, model: str) -> None:
    parts = [video(video_url(shown("red"))), {"type": "text", "text": "What is in this image?"}]
    chunks = ai.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": parts}],  # type: ignore[list-item, misc]
        temperature=0,
        max_tokens=16,
        stream=True,
    )
    assert "red circle" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_stream_holds_its_status_until_the_video_is_known(http: httpx.Client) -> None:
    response, _ = stream(http, {**watch(video_url(b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom")), "stream": True})

    assert response.status_code == 415


def test_too_many_videos(http: httpx.Client) -> None:
    clip = video(video_url(shown("red")))
    error = refused(http.post(CHAT, json=chat(user(clip, clip, "?"))), 400)

    assert (error["code"], error["limit_name"], error["limit"], error["actual"]) == (
        "too_many_videos",
        "max_videos",
        1,
        2,
    )


def test_a_damaged_video_names_its_part_and_the_next_request_is_answered(http: httpx.Client) -> None:
    data = bytearray(shown(*["red"] * 6, codec="mjpeg", container="avi"))
    start = data.index(b"movi")
    data[start + 40 :] = b"\x55" * (len(data) - start - 40)
    still = image(url_of(one("red", "circle")))
    error = refused(http.post(CHAT, json=chat(user(still, video(video_url(bytes(data))), "?"))), 422)

    assert error["part"] == 1
    assert error["param"].startswith("messages[0].content[1].video_url")
    assert "red circle" in content(http.post(CHAT, json=watch(video_url(shown("red")))))


def test_what_a_tier_makes_fit_is_told(start: Callable[..., Server]) -> None:
    flags = ("--max-video-frames", "2", "--video-sampling", "fps", "--max-image-width", "112")
    own = start(*flags, "--on-excess", "max_video_frames=fit,max_image_width=fit")
    with own.client() as http:
        response = http.post(CHAT, json=watch(video_url(shown("red", "red", "red", "red"))))
        assert "circle" in content(response)
        changes = {
            each["limit_name"]: (each["before"], each["after"]) for each in response.json()["foveate"]["adjustments"]
        }
    assert changes == {"max_video_frames": ("4 frames", "2 frames"), "max_image_width": ("224x224", "112x112")}
    own.stop()


def test_sampling_that_means_nothing_is_refused(http: httpx.Client) -> None:
    url = video_url(shown("red"))
    for sampling in ({"num_frames": 0}, {"num_frames": -2}, {"fps": 0}, {"fps": -2.0}):
        refused(http.post(CHAT, json=watch(url, sampling=sampling)), 400, param=PART)
