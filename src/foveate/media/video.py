"""Videos: what their packets say, and chosen frames as upright RGB pixels. Runs in a media worker.

Counts and times come from walking the packets, because headers lie: a live recording has no length, a cut file has more in its header than
in its body. Only the packets that the chosen frames need are decoded: from the key frame before each. To know which way up a video is, and
that its decoder works, one frame is decoded when it is opened, unless the tier refuses the video anyway.

Does not cover: sound, subtitles, tone mapping of HDR, pixels that are not square; they are left out, or taken as they are.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import av.error
import numpy as np
from av.video.frame import VideoFrame
from PIL import Image

from foveate.core.budget import Budget
from foveate.core.errors import MediaCostly, MediaUndecodable
from foveate.core.media import AS_VIEWERS_SHOW, FramePick, ImageHeader, VideoHeader
from foveate.decisions.budget import Shape, video_may_pass
from foveate.decisions.frames import FrameSampling, choose_frames
from foveate.media.demux import OpenVideo, VideoPacket, opened
from foveate.media.headers.shape import SIDEWAYS
from foveate.media.samples import flattened

PACKETS_MAX: Final = 200_000
"""Of the video's stream; five minutes at 600 frames a second. Walking them takes about 1.3 s (6.5 µs each)."""
FRAMES_WALKED_MAX: Final = 20_000
"""Frames decoded to get at the chosen ones, where key frames are rare; ten minutes at 30 a second. Time bounds it further."""
REORDER_MAX: Final = 32
"""Packets by which a frame may come out of the decoder later than its own packet went in; H.264 and HEVC allow 16."""
READABLE_MIN: Final = 0.5
"""The part of a video, and of its chosen frames, that must be there for the rest to stand for it."""

_MATRIX: Final = struct.Struct("=9i")
_ORIENTATIONS: Final = {
    (1, 0, 0, 1): 1, (-1, 0, 0, 1): 2, (-1, 0, 0, -1): 3, (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5, (0, 1, -1, 0): 6, (0, -1, -1, 0): 7, (0, -1, 1, 0): 8,
}  # fmt: skip
"""EXIF orientation by the signs of a display matrix's a, b, c, d (ISO/IEC 14496-12, 8.3.2: x' = a x + c y, y' = b x + d y)."""


_MIRRORED: Final = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1), 5: (1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}
"""Steps down and across a frame, transposed first where it lies on its side."""


def open_video(
    data: memoryview, container: str, sampling: FrameSampling, *, budget: Budget, decode_pixels_max: int
) -> tuple[VideoHeader, int, tuple[FramePick, ...]]:
    """Walk the packets of a video; return its facts, how many frames are wanted, and those to take (:func:`choose_frames`).

    Walking stops beyond the length that ``budget`` allows. A video that it refuses is returned as if it was upright, without decoding a
    frame of it. Raises MediaUnsupported when there is no video in an accepted coding, MediaUndecodable, MediaCostly.
    """
    with opened(data, container) as video:
        packets = _Packets(video, budget.max_video_seconds)
        width, height = video.stream.codec_context.width, video.stream.codec_context.height
        if width < 1 or height < 1:
            raise MediaUndecodable("The video does not say how large its frames are.")
        codec, announced = video.codec, video.announced_seconds
    times, length = packets.times(), packets.length()
    if not packets.more and length < announced * READABLE_MIN:
        raise MediaUndecodable(
            f"The video announces {announced:.1f} seconds, but only {length:.1f} of them are there.",
            limit=announced * READABLE_MIN,
            actual=length,
        )
    seconds = max(length, announced) if packets.more else length
    chosen = choose_frames(times, length, sampling)
    picks = packets.picks(chosen.places)
    judged = video_may_pass(
        budget,
        Shape(width, height),
        seconds=seconds,
        wanted=chosen.wanted,
        taken=len(picks),
        decode_pixels_max=decode_pixels_max,
    )
    orientation = _orientation(data, container) if judged else 1
    if orientation in SIDEWAYS:
        width, height = height, width
    header = VideoHeader(
        container,
        codec,
        width,
        height,
        frames=len(times),
        seconds=seconds,
        orientation=orientation,
        more=packets.more,
    )
    return header, chosen.wanted, picks


def decode_frames(
    data: memoryview,
    header: VideoHeader,
    picks: Sequence[FramePick],
    size: tuple[int, int],
    *,
    seconds_max: float,
    background: tuple[int, int, int] = AS_VIEWERS_SHOW.background,
) -> Iterator[tuple[int, np.ndarray]]:
    """Decode the picked frames, in order; yield each one's place in ``picks`` and its pixels as soon as it is there.

    Pixels are uint8 [height, width, 3], RGB, upright, scaled to ``size`` (width, height, as displayed). A frame that cannot be decoded is
    not yielded; the frame behind it stands in if it comes before the next one picked. Raises MediaUndecodable when fewer than half can be,
    MediaCostly when it takes more than ``seconds_max`` of this process's time.
    """
    stored = size[::-1] if header.orientation in SIDEWAYS else size
    found = 0
    with opened(data, header.container) as video:
        for place, frame in _Walk(video, picks, seconds_max).frames():
            found += 1
            yield place, _upright(_rgb(frame, stored, background), header.orientation)
    if found < len(picks) * READABLE_MIN:
        raise MediaUndecodable(
            f"Only {found} of the {len(picks)} frames that were to be looked at can be decoded.",
            limit=len(picks) * READABLE_MIN,
            actual=found,
        )


def _orientation(data: memoryview, container: str) -> int:
    """Decode the first frame and return how it is to be turned."""
    with opened(data, container) as video:
        for index, packet in enumerate(video.packets()):
            for frame in video.stream.codec_context.decode(packet):
                return _orientation_of(frame)
            if index >= REORDER_MAX:
                break
        for frame in video.stream.codec_context.decode(None):
            return _orientation_of(frame)
    raise MediaUndecodable("The video's first frame cannot be decoded.")


def _orientation_of(frame: VideoFrame) -> int:
    side: Any = frame.side_data  # PyAV types it as a dictionary of what an encoder takes
    matrix = bytes(side["DISPLAYMATRIX"]) if "DISPLAYMATRIX" in side else b""
    if len(matrix) != _MATRIX.size:
        return 1
    a, b, _, c, d, *_ = _MATRIX.unpack(matrix)
    half = max(abs(a), abs(b), abs(c), abs(d)) / 2
    return _ORIENTATIONS.get((_sign(a, half), _sign(b, half), _sign(c, half), _sign(d, half)), 1)


def _sign(value: int, least: float) -> int:
    return 0 if abs(value) < least else (1 if value > 0 else -1)


class _Packets:
    """Time stamps, key frames and order of a stream's packets, without decoding any."""

    def __init__(self, video: OpenVideo, seconds_max: float) -> None:
        self._unit = float(video.stream.time_base or 1)
        self.more = False
        self._keys: list[tuple[int, int]] = []
        shown: dict[int, int] = {}
        lasting = low = high = 0
        for index, packet in enumerate(video.packets()):
            pts = packet.pts if packet.pts is not None else packet.dts
            if pts is None:
                continue
            if packet.is_keyframe or not self._keys:
                self._keys.append((pts, index))
            if packet.is_discard:
                continue
            low, high = (min(low, pts), max(high, pts)) if shown else (pts, pts)
            shown.setdefault(pts, index)
            lasting = packet.duration or lasting
            if (high - low) * self._unit > seconds_max or index >= PACKETS_MAX:
                self.more = True
                break
        if not shown:
            raise MediaUndecodable("The video has no frames that can be read.")
        if self.more and (high - low) * self._unit <= seconds_max:
            raise MediaCostly(
                f"The video has more than {PACKETS_MAX} frames.",
                limit=PACKETS_MAX,
                actual=float(len(shown)),
                limit_name="video_packets",
            )
        self._shown = sorted(shown.items())
        self._lasting = lasting
        self._keys.sort()

    def times(self) -> list[float]:
        """Return when each frame is shown, in seconds from the first."""
        start = self._shown[0][0]
        return [(pts - start) * self._unit for pts, _ in self._shown]

    def length(self) -> float:
        """Return how long the video lasts: to the end of its last frame."""
        start, end = self._shown[0][0], self._shown[-1][0]
        lasting = self._lasting or (end - start) / max(len(self._shown) - 1, 1)
        return max((end - start + lasting) * self._unit, 0.0)

    def picks(self, places: Sequence[int]) -> tuple[FramePick, ...]:
        """Return what it takes to decode the frames at ``places``. Raises MediaCostly when too many others must be, too."""
        found: list[FramePick] = []
        walked = reached = 0
        start = self._shown[0][0]
        keys = iter(self._keys)
        key = upcoming = next(keys)
        for place in places:
            pts, last = self._shown[place]
            while upcoming[0] <= pts:
                key = upcoming
                upcoming = next(keys, (2**63, 0))
            first = min(key[1], last)
            walked += max(last + 1 - max(first, reached), 0)
            reached = max(reached, last + 1)
            found.append(FramePick(pts, (pts - start) * self._unit, first, last))
        if walked > FRAMES_WALKED_MAX:
            raise MediaCostly(
                f"The video's key frames are so rare that {walked} frames had to be decoded to get at {len(places)};"
                f" at most {FRAMES_WALKED_MAX} may be.",
                limit=FRAMES_WALKED_MAX,
                actual=walked,
                limit_name="video_frames_walked",
            )
        return tuple(found)


def frame_pixels(data: memoryview, header: ImageHeader) -> np.ndarray:
    """Return a frame that was decoded before (:data:`foveate.core.media.RAW`) as uint8 [height, width, 3], without a copy."""
    return np.frombuffer(data, np.uint8).reshape(header.height, header.width, 3)


# -------------------------------------------------------------------------------------------------------- frames


class _Walk:
    """Feeds a decoder just the packets that the picked frames need."""

    def __init__(self, video: OpenVideo, picks: Sequence[FramePick], seconds_max: float) -> None:
        self._video = video
        self._decoder = video.stream.codec_context
        self._picks = picks
        self._next = 0
        self._began_at, self._seconds_max = time.process_time(), seconds_max

    def frames(self) -> Iterator[tuple[int, VideoFrame]]:
        """Yield each picked frame that can be decoded, with its place."""
        fed_until = -1
        for index, packet in enumerate(self._video.packets()):
            if self._next == len(self._picks):
                return
            pick = self._picks[self._next]
            if index < pick.first:
                continue
            if index != fed_until + 1:
                self._decoder.flush_buffers()
            fed_until = index
            yield from self._taken(packet)
            while self._next < len(self._picks) and index >= self._picks[self._next].last + REORDER_MAX:
                self._next += 1  # it did not come out; the next may
        yield from self._taken(None)

    def _taken(self, packet: VideoPacket | None) -> Iterator[tuple[int, VideoFrame]]:
        seconds = time.process_time() - self._began_at
        if seconds > self._seconds_max:
            raise MediaCostly(
                "Decoding the video takes more time than one video may.",
                limit=self._seconds_max,
                actual=round(seconds, 3),
                limit_name="media.job_seconds_max",
            )
        try:
            frames = self._decoder.decode(packet)
        except (av.error.InvalidDataError, av.error.EOFError):
            return  # this packet's frame is lost; others may be whole
        for frame in frames:
            place = self._place_of(frame)
            if place is not None:
                yield place, frame

    def _place_of(self, frame: VideoFrame) -> int | None:
        """Return the pick that ``frame`` is for, if any, and go on to the next pick."""
        if frame.pts is None or frame.is_corrupt:
            return None
        while self._next + 1 < len(self._picks) and frame.pts >= self._picks[self._next + 1].pts:
            self._next += 1
        if self._next == len(self._picks) or frame.pts < self._picks[self._next].pts:
            return None
        self._next += 1
        return self._next - 1


def _rgb(frame: VideoFrame, size: tuple[int, int], background: tuple[int, int, int]) -> np.ndarray:
    """Return a frame as uint8 [height, width, 3] at ``size``; what is transparent (GIF) shows the background."""
    transparent = any(component.is_alpha for component in frame.format.components)
    scaled = frame.reformat(*size, format="rgba" if transparent else "rgb24", interpolation="AREA")
    pixels = scaled.to_ndarray()
    return flattened(Image.fromarray(pixels), background) if transparent else pixels


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    if orientation in SIDEWAYS:
        pixels = pixels.transpose(1, 0, 2)  # 5; the others of them are this and then what 2, 3 and 4 are
    down, across = _MIRRORED[orientation]
    return pixels[::down, ::across]
