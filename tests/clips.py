"""Small videos made at test time, in which each frame can be told by its colour. No downloads, no files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np

Colour = tuple[int, int, int]

RED, GREEN, BLUE = (220, 20, 20), (20, 200, 20), (20, 20, 220)
TOLERANCE = 14
"""Of a colour's channels after lossy coding with half the chroma."""

ENCODERS = {
    "h264": "libx264",
    "hevc": "libx265",
    "vp8": "libvpx",
    "vp9": "libvpx-vp9",
    "av1": "libsvtav1",
    "mjpeg": "mjpeg",
    "mpeg4": "mpeg4",
    "gif": "gif",
    "magicyuv": "magicyuv",
    "rawvideo": "rawvideo",
    "jpeg2000": "jpeg2000",
}
_PIXELS = {"mjpeg": "yuvj444p", "gif": "rgb8", "magicyuv": "gbrp", "rawvideo": "rgb24", "jpeg2000": "rgb24"}
_QUIET = {"libx265": {"x265-params": "log-level=none"}, "libsvtav1": {"preset": "12"}}


def colour_of(number: int) -> Colour:
    """Return a colour by which frame ``number`` (below 343) is told from all others: each channel in seven steps of 35."""
    return (20 + 35 * (number % 7), 20 + 35 * (number // 7 % 7), 20 + 35 * (number // 49 % 7))


def number_of(pixels: np.ndarray) -> int:
    """Return which frame of :func:`colour_of` a picture is; fails when it is none."""
    middle = np.median(pixels.reshape(-1, 3), axis=0)
    steps = [round((float(value) - 20) / 35) for value in middle]
    number = steps[0] + 7 * steps[1] + 49 * steps[2]
    assert np.abs(middle - np.array(colour_of(number))).max() <= TOLERANCE, middle
    return number


def clip(colours: Sequence[Colour], *, size: tuple[int, int] = (64, 48), mark: bool = False, **options: Any) -> bytes:
    """Return a video of single-coloured frames. ``mark`` paints the upper left quarter black, so that turning shows."""
    width, height = size
    frames = [np.full((height, width, 3), colour, np.uint8) for colour in colours]
    if mark:
        for frame in frames:
            frame[: height // 2, : width // 2] = 0
    return clip_of(frames, **options)


def clip_of(
    frames: Sequence[np.ndarray],
    *,
    container: str = "mp4",
    codec: str = "h264",
    fps: int = 10,
    times: Sequence[float] | None = None,
    gop: int = 12,
    rotation: int | None = None,
    options: dict[str, str] | None = None,
    muxing: dict[str, str] | None = None,
    streamed: bool = False,
) -> bytes:
    """Return a video of ``frames`` (uint8 [height, width, 3]).

    ``times`` (seconds) makes the rate vary; ``rotation`` (degrees anticlockwise) is stored as a display matrix; ``streamed`` muxes as into
    a pipe, so that headers cannot be completed at the end.
    """
    unit = Fraction(1, 1000)
    with tempfile.NamedTemporaryFile() as out, _muxer(out, container, muxing, streamed=streamed) as file:
        encoder = ENCODERS[codec]
        stream = file.add_stream(encoder, rate=fps, options={**_QUIET.get(encoder, {}), **(options or {})})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = _PIXELS.get(codec, "yuv420p")
        stream.codec_context.gop_size = gop
        if times is not None:
            stream.codec_context.time_base = unit
        if rotation is not None:
            stream.set_display_rotation(rotation)
        for place, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = round(times[place] * 1000), unit
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
        file.close()
        out.seek(0)
        return out.read()


def numbered(count: int, **options: Any) -> bytes:
    """Return a video whose frames are told apart by :func:`number_of`."""
    return clip([colour_of(number) for number in range(count)], **options)


def _muxer(out: Any, container: str, options: dict[str, str] | None, *, streamed: bool) -> Any:
    # Into a path and not into memory: moving an index to the front means reading the file again.
    return av.open(_Pipe(out) if streamed else out.name, "w", format=container, options=options or {})


class _Pipe:
    """Takes bytes and cannot seek."""

    def __init__(self, out: Any) -> None:
        self._out = out

    def write(self, data: bytes) -> int:
        self._out.write(data)
        self._out.flush()
        return len(data)
