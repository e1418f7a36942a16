"""A video's container, opened so that nothing but its own bytes and a few decoders can be reached. Runs in a media worker.

The container was recognised by its bytes (:mod:`foveate.media.headers.container`) and is opened under that name only, so that no playlist
is ever read as one; ffmpeg gets the bytes in memory and no protocol. Its decoders are limited before it looks for what a header leaves out,
for which it may decode a few frames. Does not cover: what the packets say (:mod:`foveate.media.video`).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import av
import av.error
from av.codec.context import ThreadType
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from foveate.core.errors import MediaCostly, MediaUndecodable, MediaUnsupported

VideoPacket: TypeAlias = "Packet[VideoStream]"

CODECS: Final = ("h264", "hevc", "vp8", "vp9", "av1", "mjpeg", "mpeg4")
"""Decoders that may see a client's bytes: what cameras, phones and browsers write. Most of ffmpeg's faults are in the others."""

_CODECS_OF: Final = {"gif": ("gif",)}
_DEMUXERS: Final = {"mp4": "mov", "matroska": "matroska", "avi": "avi", "gif": "gif"}
_DECODERS: Final = ",".join((*CODECS, "libdav1d", "gif"))
_STREAMS_MAX: Final = 64
_BOXES_MAX: Final = 64
_LENGTH_BELIEVED_SECONDS_MAX: Final = 1e6
"""A header that announces more says nothing."""


@dataclass(frozen=True)
class OpenVideo:
    """An open container and the one of its streams that is looked at."""

    container: InputContainer
    stream: VideoStream

    @property
    def codec(self) -> str:
        """The decoder's canonical name: ``av1`` also where libdav1d does it."""
        return self.stream.codec_context.codec.canonical_name

    @property
    def announced_seconds(self) -> float:
        """What the header says of the length, the shorter where it says two things; 0 when it says nothing to be believed."""
        claims: list[float] = []
        if self.stream.duration and self.stream.time_base:
            claims.append(float(self.stream.duration * self.stream.time_base))
        if self.container.duration:
            claims.append(self.container.duration / av.time_base)
        return min((seconds for seconds in claims if 0 < seconds <= _LENGTH_BELIEVED_SECONDS_MAX), default=0.0)

    def packets(self) -> Iterator[VideoPacket]:
        """Yield the stream's packets in the order of the file, up to where the file ends or turns to noise; none that was cut off."""
        packets = self.container.demux(self.stream)
        while True:
            try:
                packet = next(packets, None)
            except (av.error.InvalidDataError, av.error.EOFError):
                return
            if packet is None or packet.size == 0:
                return
            if not packet.is_corrupt:
                yield packet


@contextmanager
def opened(data: memoryview, container: str) -> Iterator[OpenVideo]:
    """Open ``data`` as a ``container``; ffmpeg's errors in this context become answers.

    Raises MediaUnsupported when there is no video in an accepted coding, MediaUndecodable, MediaCostly.
    """
    accepted = _CODECS_OF.get(container, CODECS)
    try:
        with av.open(
            io.BytesIO(data),
            format=_DEMUXERS[container],
            options={
                "codec_whitelist": _DECODERS,
                "protocol_whitelist": "none",
                "format_whitelist": _DEMUXERS[container],
                "max_streams": str(_STREAMS_MAX),
            },
            metadata_errors="ignore",
            io_open=_refuse_to_open,
        ) as found:
            assert isinstance(found, InputContainer)
            stream = next((one for one in found.streams.video if not _is_cover(one)), None)
            if stream is None:
                raise MediaUnsupported("The media has no video stream.")
            _check_codec(stream, accepted)
            stream.codec_context.thread_count = 1
            stream.codec_context.thread_type = ThreadType.NONE
            yield OpenVideo(found, stream)
    except (av.error.InvalidDataError, av.error.EOFError) as error:
        if container == "mp4" and not _has_samples(data):
            raise MediaUnsupported("The media has no video stream.", detail=type(error).__name__) from None
        raise MediaUndecodable("The video is damaged or incomplete.", detail=type(error).__name__) from None
    except av.error.MemoryError:
        raise MediaCostly("Decoding the video needs more memory than one video may use.") from None
    except av.error.FFmpegError as error:
        raise MediaUndecodable("The video cannot be read.", detail=type(error).__name__) from None


def _refuse_to_open(url: str, flags: int, options: dict[str, Any]) -> Any:
    raise PermissionError("a video may not open other files")


def _is_cover(stream: VideoStream) -> bool:
    return bool(stream.disposition & Disposition.attached_pic)


def _check_codec(stream: VideoStream, accepted: Sequence[str]) -> None:
    context: VideoCodecContext | None = (
        stream.codec_context
    )  # None where ffmpeg has no decoder; PyAV's types do not say so
    name = context.codec.canonical_name if context is not None else "unknown"
    if name not in accepted:
        raise MediaUnsupported(f"The video's coding is {name}; accepted are {', '.join(accepted)}.")


def _has_samples(data: memoryview) -> bool:
    """Tell whether an MP4 has anything besides its file type: an index or sample data."""
    at = 0
    for _ in range(_BOXES_MAX):
        if at + 8 > len(data):
            return False
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind in (b"moov", b"mdat", b"moof"):
            return True
        if length < 8:
            return False
        at += length
    return False
