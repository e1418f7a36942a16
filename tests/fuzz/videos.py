"""Fuzz target: any bytes through the sniffing of containers, the walk over packets, and the decoding of chosen frames.

Only the typed refusals may come out. ffmpeg runs in this process, so that a crash, a hang or a hunger for memory is a finding. Coverage is
of Python code; the demuxers and decoders are not instrumented.
"""

from __future__ import annotations

import zlib

import numpy as np
from tests.clips import BLUE, GREEN, RED, clip

from foveate.core.budget import Budget
from foveate.core.errors import MediaCostly, MediaUndecodable, MediaUnsupported, TooManyFrames
from foveate.decisions.frames import FrameSampling
from foveate.media.frame_list import frame_places, joined
from foveate.media.headers.container import video_container
from foveate.media.video import decode_frames, open_video

PIXELS_MAX = 1 << 18
BUDGET = Budget(max_video_seconds=60.0)
SAMPLINGS = (FrameSampling(3), FrameSampling(8, fps=2.0), FrameSampling(1, asked_max=5))
SIZES = ((0, 0), (5, 3), (1, 1))


def check(data: bytes) -> None:
    """Raise for anything but frames or a typed refusal. The same bytes always take the same options."""
    choice = zlib.crc32(data)
    view = memoryview(data)
    try:
        container = video_container(view)
        if container == "jpeg-list":
            assert all(at + size <= len(data) for at, size in frame_places(view))
            return
        sampling = SAMPLINGS[choice % len(SAMPLINGS)]
        header, wanted, picks = open_video(view, container, sampling, budget=BUDGET, decode_pixels_max=PIXELS_MAX)
        assert 1 <= len(picks) <= sampling.frames_max
        assert wanted >= len(picks)
        assert header.seconds >= 0
        if header.pixels > PIXELS_MAX:
            return
        asked = SIZES[choice // len(SAMPLINGS) % len(SIZES)]
        size = (asked[0] or header.width, asked[1] or header.height)
        for place, pixels in decode_frames(view, header, picks, size, seconds_max=5):
            assert 0 <= place < len(picks)
            assert (pixels.dtype, pixels.shape) == (np.uint8, (size[1], size[0], 3))
    except (MediaUndecodable, MediaUnsupported, MediaCostly, TooManyFrames):
        return


def ready() -> None:
    """Load what takes seconds before the fuzzer's clock for one input runs."""
    check(seeds()[0])


def repaired(data: bytes) -> bytes:
    """Return mutated bytes as they are: containers have no checksums in the way."""
    return data


def seeds() -> list[bytes]:
    """Return small videos of every container and coding."""
    colours = [RED, GREEN, BLUE, RED]
    kinds = (
        ("mp4", "h264"), ("mov", "mjpeg"), ("mp4", "hevc"), ("mp4", "mpeg4"), ("matroska", "h264"), ("webm", "vp8"), ("webm", "vp9"),
        ("webm", "av1"), ("avi", "mjpeg"), ("avi", "mpeg4"), ("gif", "gif"), ("avi", "magicyuv"),
    )  # fmt: skip
    small = [
        clip(colours, container=container, codec=codec, size=(32, 16), gop=gop)
        for container, codec in kinds
        for gop in (1, 4)
    ]
    turned = [clip(colours, rotation=degrees, size=(32, 16)) for degrees in (90, -90, 180)]
    live = clip(colours, container="webm", codec="vp8", streamed=True, size=(32, 16))
    fragments = clip(colours, muxing={"movflags": "frag_keyframe+empty_moov"}, streamed=True, size=(32, 16))
    uneven = clip(colours, times=[0.0, 0.1, 5.0, 6.0], size=(32, 16))
    return [
        *small,
        *turned,
        live,
        fragments,
        uneven,
        joined([b"\xff\xd8 one frame \xff\xd9", b"\xff\xd8 two \xff\xd9"]),
    ]
