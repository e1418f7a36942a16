"""Opening videos and decoding chosen frames: every accepted coding, cut and lying files, and what must never be reached."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.clips import BLUE, GREEN, RED, TOLERANCE, clip, colour_of, number_of, numbered

from foveate.core.budget import Budget
from foveate.core.errors import FoveateError, MediaCostly, MediaUndecodable, MediaUnsupported
from foveate.core.media import FramePick, VideoHeader
from foveate.decisions.frames import FrameSampling
from foveate.media import video as module
from foveate.media.demux import opened
from foveate.media.headers.container import video_container
from foveate.media.probe import probe
from foveate.media.video import decode_frames, open_video

PIXELS_MAX = 10_000_000


def look(
    data: bytes, frames_max: int = 4, *, seconds_max: float = 300.0, fps: float = 0.0
) -> tuple[VideoHeader, int, tuple[FramePick, ...]]:
    view = memoryview(data)
    sampling = FrameSampling(frames_max, fps)
    return open_video(
        view,
        video_container(view),
        sampling,
        budget=Budget(max_video_seconds=seconds_max),
        decode_pixels_max=PIXELS_MAX,
    )


def frames(
    data: bytes, frames_max: int = 4, *, size: tuple[int, int] | None = None, seconds_max: float = 30.0
) -> list[np.ndarray]:
    header, _, picks = look(data, frames_max)
    size = size or (header.width, header.height)
    return [pixels for _, pixels in decode_frames(memoryview(data), header, picks, size, seconds_max=seconds_max)]


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp4", "h264"),
        ("mov", "h264"),
        ("mp4", "hevc"),
        ("mp4", "av1"),
        ("webm", "vp8"),
        ("webm", "vp9"),
        ("matroska", "h264"),
        ("avi", "mjpeg"),
        ("avi", "mpeg4"),
    ],
)
def test_exactly_the_chosen_frames_come_out_of_every_coding(container: str, codec: str) -> None:
    data = numbered(200, container=container, codec=codec, gop=30)

    header, wanted, picks = look(data, 8)
    decoded = list(decode_frames(memoryview(data), header, picks, (64, 48), seconds_max=30))

    assert (header.codec, header.width, header.height, header.frames) == (codec, 64, 48, 200)
    assert header.seconds == pytest.approx(20.0, abs=0.1)
    assert wanted == 8
    assert [place for place, _ in decoded] == list(range(8))
    assert [number_of(pixels) for _, pixels in decoded] == [12, 37, 62, 87, 112, 137, 162, 187]
    assert [pick.seconds for pick in picks] == pytest.approx([number / 10 for number in range(12, 200, 25)], abs=0.002)


def test_frames_by_time_carry_the_times_they_are_shown_at() -> None:
    _, wanted, picks = look(numbered(50), 32, fps=1.0)

    assert wanted == 5
    assert [pick.seconds for pick in picks] == pytest.approx([0, 1, 2, 3, 4])


def test_a_rate_that_varies_is_sampled_by_time() -> None:
    times = [place * 0.1 for place in range(10)] + [5.0 + place for place in range(10)]
    data = numbered(20, times=times)

    assert [number_of(pixels) for pixels in frames(data, 4)] == [9, 10, 13, 17]


def test_only_the_packets_between_key_frame_and_frame_are_fed() -> None:
    data = numbered(200, codec="mpeg4", gop=20, options={"sc_threshold": "1000000000"})

    _, _, picks = look(data, 4)

    assert [(pick.first, pick.last) for pick in picks] == [(20, 25), (60, 75), (120, 125), (160, 175)]


def test_an_animated_gif_is_a_video_with_white_behind_it() -> None:
    data = clip([RED, GREEN, BLUE], container="gif", codec="gif")

    colours = [np.median(pixels.reshape(-1, 3), axis=0) for pixels in frames(data)]

    assert [int(np.argmax(colour)) for colour in colours] == [0, 1, 2]


@pytest.mark.parametrize(
    ("rotation", "corner"),
    [(None, (0, 0)), (90, (1, 0)), (-90, (0, 1)), (180, (1, 1))],
)
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_frames_are_upright(container: str, rotation: int | None, corner: tuple[int, int]) -> None:
    data = clip([RED], rotation=rotation, container=container, mark=True)

    header, _, _ = look(data)
    (pixels,) = frames(data)

    assert pixels.shape == (header.height, header.width, 3)
    assert (header.width, header.height) == ((64, 48) if rotation in (None, 180) else (48, 64))
    dark = pixels[:, :, 0] < 110
    quarters = [[dark[: dark.shape[0] // 2], dark[dark.shape[0] // 2 :]][down] for down in (0, 1)]
    shares = {
        (down, across): half[:, : half.shape[1] // 2].mean() if across == 0 else half[:, half.shape[1] // 2 :].mean()
        for down, half in enumerate(quarters)
        for across in (0, 1)
    }
    assert max(shares, key=lambda place: shares[place]) == corner


def test_frames_are_scaled_as_displayed() -> None:
    (pixels,) = frames(clip([BLUE], rotation=90, size=(128, 64)), size=(16, 32))

    assert pixels.shape == (32, 16, 3)
    assert np.abs(np.median(pixels.reshape(-1, 3), axis=0) - BLUE).max() <= TOLERANCE


@pytest.mark.parametrize(
    "data",
    [
        numbered(60, container="webm", codec="vp8", streamed=True),
        numbered(60, muxing={"movflags": "frag_keyframe+empty_moov"}, streamed=True),
    ],
    ids=["live webm", "fragmented mp4"],
)
def test_headers_without_a_length_are_counted_instead(data: bytes) -> None:
    header, _, _ = look(data)

    assert header.frames == 60
    assert header.seconds == pytest.approx(6.0, abs=0.1)
    assert [number_of(pixels) for pixels in frames(data)] == [7, 22, 37, 52]


def test_a_cut_end_costs_its_own_frames_only() -> None:
    data = numbered(60, muxing={"movflags": "faststart"}, gop=6)

    header, _, _ = look(data[: len(data) * 95 // 100])

    assert 40 <= header.frames < 60
    assert len(frames(data[: len(data) * 95 // 100])) == 4


def test_a_video_of_which_most_is_missing_is_refused() -> None:
    data = numbered(200, codec="mjpeg", container="mov", muxing={"movflags": "faststart"})

    with pytest.raises(MediaUndecodable, match="announces 20") as caught:
        look(data[: len(data) // 3])

    assert caught.value.actual is not None


@pytest.mark.parametrize("damaged", [2, 5])
def test_damaged_frames_are_left_out_up_to_half(damaged: int) -> None:
    """Six key frames; the sample data of some are overwritten."""
    data = bytearray(
        numbered(6, codec="vp9", container="webm", gop=1, size=(320, 240), options={"crf": "4", "b:v": "2M"})
    )
    header, _, picks = look(bytes(data), 6)
    with opened(memoryview(bytes(data)), "matroska") as found:
        packets = [(packet.pos, packet.size) for packet in found.packets()]
    for position, size in packets[:damaged]:
        begin = bytes(data).index(b"\x82\x49\x83\x42", position)  # VP9's key frame and its sync code
        data[begin : begin + size // 2] = b"\xff" * (size // 2)

    def decode() -> list[int]:
        view = memoryview(bytes(data))
        return [number_of(pixels) for _, pixels in decode_frames(view, header, picks, (320, 240), seconds_max=30)]

    if damaged == 2:
        assert decode() == [2, 3, 4, 5]
    else:
        with pytest.raises(MediaUndecodable, match="Only 1 of the 6 frames"):
            decode()


def test_counting_stops_where_it_is_too_long_anyway() -> None:
    header, _, _ = look(numbered(300, fps=1), seconds_max=100)

    assert header.more
    assert 90 < header.frames < 110
    assert header.seconds == pytest.approx(300)


def test_frames_too_dense_to_be_counted_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKETS_MAX", 50)

    with pytest.raises(MediaCostly, match="more than 50 frames"):
        look(numbered(60))


def test_rare_key_frames_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRAMES_WALKED_MAX", 100)

    with pytest.raises(MediaCostly, match="frames had to be decoded"):
        look(numbered(200, codec="mpeg4", gop=300, options={"sc_threshold": "1000000000"}))


def test_decoding_ends_when_its_time_is_over() -> None:
    data = numbered(60)

    with pytest.raises(MediaCostly, match="more time"):
        frames(data, seconds_max=-1)


@pytest.mark.parametrize(
    ("limits", "turned"),
    [
        ({}, True),
        ({"max_image_pixels": 64 * 48 - 1}, False),
        ({"max_image_pixels": 64 * 48 - 1, "on_excess": {"max_image_pixels": "fit"}}, True),
        ({"max_image_width": 47}, False),
        ({"max_image_width": 48}, True),
        ({"max_image_height": 48}, True),
        ({"max_total_pixels": 3 * 64 * 48 - 1}, False),
        ({"max_total_pixels": 3 * 64 * 48}, True),
        ({"max_video_seconds": 2.9}, False),
        ({"max_video_frames": 2}, False),
        ({"max_video_frames": 2, "on_excess": {"max_video_frames": "fit"}}, True),
        ({"max_video_frames": 0, "on_excess": {"max_video_frames": "fit"}}, False),
    ],
)
def test_no_frame_of_a_video_that_is_refused_anyway_is_decoded(limits: dict[str, Any], turned: bool) -> None:
    view = memoryview(clip([RED, GREEN, BLUE], fps=1, rotation=90))

    header, _, _ = open_video(
        view, "mp4", FrameSampling(8, fps=1), budget=Budget(**limits), decode_pixels_max=PIXELS_MAX
    )

    assert (header.width, header.height) == ((48, 64) if turned else (64, 48))


def test_a_huge_frame_is_not_decoded_to_learn_its_orientation() -> None:
    view = memoryview(clip([RED], rotation=90))

    header, _, _ = open_video(view, "mp4", FrameSampling(4), budget=Budget(), decode_pixels_max=64 * 48 - 1)

    assert (header.width, header.height) == (64, 48)


@pytest.mark.parametrize("codec", ["magicyuv", "rawvideo"])
def test_other_codings_are_named_and_never_decoded(codec: str) -> None:
    data = clip([RED, GREEN], container="avi", codec=codec)

    with pytest.raises(MediaUnsupported, match=f"coding is {codec}; accepted are h264, hevc, vp8, vp9, av1"):
        look(data)


def test_a_container_without_video_is_refused() -> None:
    empty = struct.pack(">I4s4sI4s4s", 24, b"ftyp", b"mp42", 0, b"mp42", b"isom")

    with pytest.raises(MediaUnsupported) as caught:
        look(empty)

    assert caught.value.public == "The media has no video stream."


@pytest.mark.parametrize(
    "mark",
    [b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", b"\x1aE\xdf\xa3\x9fB\x82\x84webm", b"RIFF\0\x10\0\0AVI ", b"GIF89a"],
    ids=["mp4", "webm", "avi", "gif"],
)
def test_noise_behind_a_right_beginning_is_an_answer(mark: bytes) -> None:
    """Noise in a GIF may even be a picture; then it is one."""
    for seed in range(20):
        data = mark + np.random.default_rng(seed).bytes(4000)
        with contextlib.suppress(MediaUndecodable, MediaUnsupported, MediaCostly):
            found = frames(data)
            assert found
            assert mark == b"GIF89a"


def test_damage_anywhere_is_an_answer_or_frames() -> None:
    whole = numbered(12, muxing={"movflags": "faststart"})
    rng = np.random.default_rng(7)
    for _ in range(60):
        data = bytearray(whole)
        for place in rng.integers(8, len(data), 20):
            data[place] = rng.integers(256)
        with contextlib.suppress(MediaUndecodable, MediaUnsupported, MediaCostly):
            assert all(pixels.shape[2] == 3 for pixels in frames(bytes(data)))


@pytest.fixture
def listener() -> Iterator[tuple[int, list[int]]]:
    """A port that counts who connects."""
    connected: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        over = threading.Event()

        def count() -> None:
            while not over.is_set():
                try:
                    server.accept()[0].close()
                except TimeoutError:
                    continue
                connected.append(1)

        thread = threading.Thread(target=count)
        thread.start()
        yield server.getsockname()[1], connected
        over.set()
        thread.join()


def test_nothing_outside_the_bytes_is_reached(listener: tuple[int, list[int]]) -> None:
    port, connected = listener
    url = f"http://127.0.0.1:{port}/seg0.ts".encode()
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1.0,\n" + url + b"\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
    manifest = b'<?xml version="1.0"?><MPD><Period><BaseURL>' + url + b"</BaseURL></Period></MPD>"
    outside = _with_outside_samples(clip([RED]), url)

    for data in (playlist, manifest, outside, b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + playlist):
        with pytest.raises(FoveateError):
            frames(data)

    assert connected == []


def _with_outside_samples(data: bytes, url: bytes) -> bytes:
    """Return an MP4 whose track says that its samples lie at ``url`` (ISO/IEC 14496-12, 8.7.2), its own being gone."""
    inside = b"\0\0\0\x0curl \0\0\0\x01"
    outside = struct.pack(">I4sI", 12 + len(url) + 1, b"url ", 0) + url + b"\0"
    start = data.index(b"moov") - 4
    index = data[start:].replace(inside, outside)
    grown = len(outside) - len(inside)
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        at = index.index(box) - 4
        index = index[:at] + struct.pack(">I", struct.unpack_from(">I", index, at)[0] + grown) + index[at + 4 :]
    return data[: data.index(b"mdat") - 4] + index


def test_colours_survive() -> None:
    for number, pixels in enumerate(frames(clip([RED, GREEN, BLUE]), 3)):
        assert np.abs(np.median(pixels.reshape(-1, 3), axis=0) - (RED, GREEN, BLUE)[number]).max() <= TOLERANCE
    assert colour_of(8) == (55, 55, 20)


@pytest.mark.parametrize(("container", "codec"), [("mp4", "h264"), ("webm", "vp8"), ("avi", "mjpeg")])
def test_a_video_sent_as_a_picture_is_told_where_it_belongs(container: str, codec: str) -> None:
    with pytest.raises(MediaUnsupported, match="send it as video_url"):
        probe(memoryview(clip([RED], container=container, codec=codec)))
