"""What the gateway and a media worker say to each other: one job, one reply, one at a time.

The gateway's side is :class:`foveate.media.pool.MediaPool`, the worker's :mod:`foveate.media.worker`.
"""

from __future__ import annotations

import msgspec

from foveate.core.budget import Budget
from foveate.core.errors import ErrorRecord
from foveate.core.media import (
    Appearance,
    Blob,
    FramePick,
    ImageHeader,
    ImageOptions,
    PreparedImage,
    VideoHeader,
)
from foveate.core.memory import Slot, TensorBundle
from foveate.core.stages import Span
from foveate.decisions.frames import FrameSampling
from foveate.media.embeddings import EmbeddingShape


class WorkerConfig(msgspec.Struct, frozen=True):
    """What a media worker is told once, when it starts.

    ``model_dir`` is the directory of the model whose processor it loads; empty: none, so that it only unpacks bodies and reads videos.
    ``pixels_max`` is the most pixels of any picture (0: no limit); the gateway has judged by it already, the worker does so again because
    it is the one who would pay. ``pixels``: the engine has a processor of its own, and pictures end here as pixels.
    """

    model_dir: str
    appearance: Appearance = Appearance()
    pixels_max: int = 0
    pixels: bool = False
    own_encoder: str = ""
    """``package.module:Class`` of an operator's own vision encoder, whose processor it is then; empty: the checkpoint's."""
    own_source: str = ""
    """The hash of that encoder's source (:mod:`foveate.models.own_source`), which the worker must find too."""


class Unpack(msgspec.Struct, frozen=True, tag="unpack"):
    """Take the inline pictures out of the JSON ``body`` and put their bytes into ``out``.

    ``out`` needs at most as much as the body has. ``job_id`` is given by the pool.
    """

    body: Slot
    out: Slot
    job_id: int = 0


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Turn the encoded picture in ``source`` into model inputs in ``out``. ``job_id`` is given by the pool."""

    source: Slot
    header: ImageHeader
    options: ImageOptions
    out: Slot
    job_id: int = 0


class ProbeVideo(msgspec.Struct, frozen=True, tag="probe_video"):
    """Walk the packets of the video in ``source`` and choose frames (:func:`foveate.media.video.open_video`).

    Of a video that ``budget`` refuses no frame is decoded; the refusal is the gateway's to make.
    """

    source: Slot
    container: str
    sampling: FrameSampling
    budget: Budget
    decode_pixels_max: int
    job_id: int = 0


class DecodeFrames(msgspec.Struct, frozen=True, tag="decode_frames"):
    """Decode the picked frames of the video in ``source``, scaled to ``width`` x ``height`` as displayed.

    The i-th pick's pixels (uint8 [height, width, 3]) go to byte ``i * width * height * 3`` of ``out``. ``seconds_max`` bounds the worker's
    own computing time.
    """

    source: Slot
    header: VideoHeader
    picks: tuple[FramePick, ...]
    width: int
    height: int
    seconds_max: float
    out: Slot
    job_id: int = 0


class ReadEmbeddings(msgspec.Struct, frozen=True, tag="read_embeddings"):
    """Read and check the client's own embeddings in ``source`` (:mod:`foveate.media.embeddings`), and write them to ``out`` where there is
    one. ``grid`` as in :class:`foveate.core.media.EmbedsRef`.
    """

    source: Slot
    grid: tuple[int, ...] | str
    shape: EmbeddingShape
    out: Slot | None = None
    job_id: int = 0


class UnpackedBlob(msgspec.Struct, frozen=True):
    """One inline picture: either its bytes, in a part of ``Unpack.out``, or what is wrong with its data URL."""

    blob: Blob | None = None
    error: ErrorRecord | None = None


class UnpackDone(msgspec.Struct, frozen=True, tag="unpack_done"):
    """The body without its inline pictures (see :class:`foveate.journey.port.Unpacked`). Times: monotonic seconds; ``cpu_ms``: the
    worker's processor time.
    """

    job_id: int
    skeleton: bytes
    blobs: tuple[UnpackedBlob, ...]
    started_at: float
    ended_at: float
    cpu_ms: float = 0.0


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The picture's model inputs lie in ``Prepare.out``."""

    job_id: int
    image: PreparedImage


class TooSmall(msgspec.Struct, frozen=True, tag="too_small"):
    """``out`` cannot hold the result; ``bytes_needed`` can. Nothing was written."""

    job_id: int
    bytes_needed: int


class JobFailed(msgspec.Struct, frozen=True, tag="job_failed"):
    """The job cannot be done; ``spans`` are the stages that were reached. The worker is well and takes the next job."""

    job_id: int
    error: ErrorRecord
    spans: tuple[Span, ...] = ()


class VideoProbed(msgspec.Struct, frozen=True, tag="video_probed"):
    """What is known of the video; ``wanted`` frames would have been taken without a limit, ``picks`` are those within it.

    ``cpu_ms``: the worker's processor time.
    """

    job_id: int
    header: VideoHeader
    wanted: int
    picks: tuple[FramePick, ...]
    cpu_ms: float = 0.0


class FramesDecoded(msgspec.Struct, frozen=True, tag="frames_decoded"):
    """The picks at ``places`` lie in ``frames``, the part of ``DecodeFrames.out`` that has room for all; the others could not be decoded.

    ``cpu_ms``: the worker's processor time.
    """

    job_id: int
    places: tuple[int, ...]
    frames: Slot
    cpu_ms: float = 0.0


class EmbeddingsRead(msgspec.Struct, frozen=True, tag="embeddings_read"):
    """They are well formed; ``embeddings`` as in :class:`foveate.core.media.EncodedImage`, None where they were only looked at.

    ``cpu_ms``: the worker's processor time.
    """

    job_id: int
    rows: int
    grid: tuple[int, ...]
    embeddings: TensorBundle | None = None
    cpu_ms: float = 0.0


MediaJob = Unpack | Prepare | ProbeVideo | DecodeFrames | ReadEmbeddings
MediaReply = UnpackDone | Prepared | VideoProbed | FramesDecoded | EmbeddingsRead | TooSmall | JobFailed
