"""A media worker: takes inline pictures out of large bodies, turns encoded pictures into model inputs and videos into frames.
One job at a time.

A job that fails is answered as failed and the next one is taken; only the gateway's end, or its wish, ends the loop.
Time and memory are bounded from outside (:mod:`foveate.media.pool` kills, the runtime sets the memory limit). Pixels
of pictures leave this process only for an engine that takes them as such; frames of videos do, so that they can be processed side by side.
"""

from __future__ import annotations

import logging
import math
import warnings
from time import process_time
from typing import Final

import msgspec
import numpy as np

from foveate.core.clock import now
from foveate.core.errors import Failed, FoveateError, ImageTooLarge, MediaCostly, MediaUndecodable
from foveate.core.media import RAW, Blob, ImageHeader, PreparedImage
from foveate.core.memory import Slot
from foveate.core.stages import Span, Stage
from foveate.decisions.budget import DECODE_LIMIT
from foveate.media.embeddings import read_embeddings, read_grid
from foveate.media.image import Scratch, to_pixels
from foveate.media.messages import (
    DecodeFrames,
    EmbeddingsRead,
    FramesDecoded,
    JobFailed,
    MediaJob,
    MediaReply,
    Prepare,
    Prepared,
    ProbeVideo,
    ReadEmbeddings,
    TooSmall,
    Unpack,
    UnpackDone,
    UnpackedBlob,
    VideoProbed,
    WorkerConfig,
)
from foveate.media.unpack import InlineBlob, unpack
from foveate.media.video import decode_frames, frame_pixels, open_video
from foveate.models.port import PictureProcessor
from foveate.runtime.port import Ready, WorkerContext
from foveate.runtime.tensors import SlotTooSmall, write_bundle

log = logging.getLogger(__name__)

RECEIVES: Final = MediaJob
SENDS: Final = MediaReply


def main(context: WorkerContext) -> None:
    """Entry point of a media worker; ``context.spec.config`` is a :class:`WorkerConfig`."""
    from foveate.models import load_picture_processor  # when called it loads transformers: only a worker may

    # Pillow warns of odd files on stderr; the answer to the client says what matters, and anyone could fill the log.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    config = msgspec.convert(context.spec.config, WorkerConfig)
    processor: PictureProcessor | None = None
    if config.own_encoder:
        from foveate.models.own_encoder import load_own_processor

        processor = load_own_processor(config.model_dir, config.own_encoder, config.own_source)
    elif config.model_dir:
        processor = load_picture_processor(config.model_dir, config.appearance, pixels=config.pixels)
    worker = MediaWorker(context, processor, config)
    context.send(Ready({}))
    while (job := context.receive()) is not None:
        context.send(worker.reply(job))


class MediaWorker:
    """Does jobs over the arena's slots. Every job gets exactly one reply."""

    def __init__(self, context: WorkerContext, processor: PictureProcessor | None, config: WorkerConfig) -> None:
        self._arena = context.arena
        self._processor = processor
        self._config = config
        self._scratch = Scratch()

    def reply(self, job: MediaJob) -> MediaReply:
        """Do the job; whatever goes wrong becomes :class:`JobFailed`."""
        spans: list[Span] = []
        try:
            if isinstance(job, Prepare):
                return self._prepare(job, spans)
            if isinstance(job, Unpack):
                return self._unpack(job)
            if isinstance(job, ReadEmbeddings):
                return self._read_embeddings(job)
            return self._probe_video(job) if isinstance(job, ProbeVideo) else self._decode_frames(job)
        except SlotTooSmall as error:
            return TooSmall(job.job_id, error.bytes_needed)
        except FoveateError as error:
            failure = error
        except MemoryError:
            failure = _too_costly()
        except Exception as error:
            if "allocate memory" in str(error):
                # torch says so in a RuntimeError of its own.
                return JobFailed(job.job_id, _too_costly().record(), tuple(spans))
            # The loop must live: an unforeseen fault of one job is logged whole and answered in general words.
            log.exception("a media job failed unexpectedly")
            failure = MediaUndecodable("The picture could not be processed.", detail=type(error).__name__)
        return JobFailed(job.job_id, failure.record(), tuple(spans))

    def _unpack(self, job: Unpack) -> UnpackDone:
        started_at, processor_start = now(), process_time()
        result = unpack(self._arena.view(job.body), self._arena.view(job.out))
        blobs = tuple(
            UnpackedBlob(blob=Blob(Slot(job.out.offset + found.offset, found.size), found.digest))
            if isinstance(found, InlineBlob)
            else UnpackedBlob(error=found)
            for found in result.blobs
        )
        cpu_ms = (process_time() - processor_start) * 1e3
        return UnpackDone(job.job_id, result.skeleton, blobs, started_at, now(), cpu_ms)

    def _read_embeddings(self, job: ReadEmbeddings) -> EmbeddingsRead:
        processor_start = process_time()
        grid = read_grid(job.grid) if isinstance(job.grid, str) else job.grid
        tensors = read_embeddings(self._arena.view(job.source), job.shape)
        bundle = None
        if job.out is not None:
            dtypes = dict.fromkeys(tensors, job.shape.dtype)
            bundle = write_bundle(self._arena.view(job.out), job.out, tensors, dtypes)
        cpu_ms = (process_time() - processor_start) * 1e3
        return EmbeddingsRead(job.job_id, len(tensors["rows"]), grid, bundle, cpu_ms)

    def _probe_video(self, job: ProbeVideo) -> VideoProbed:
        processor_start = process_time()
        header, wanted, picks = open_video(
            self._arena.view(job.source),
            job.container,
            job.sampling,
            budget=job.budget,
            decode_pixels_max=job.decode_pixels_max,
        )
        return VideoProbed(job.job_id, header, wanted, picks, (process_time() - processor_start) * 1e3)

    def _decode_frames(self, job: DecodeFrames) -> FramesDecoded:
        processor_start = process_time()
        shape = (len(job.picks), job.height, job.width, 3)
        out = np.frombuffer(self._arena.view(job.out), np.uint8, count=math.prod(shape)).reshape(shape)
        places: list[int] = []
        decoded = decode_frames(
            self._arena.view(job.source),
            job.header,
            job.picks,
            (job.width, job.height),
            seconds_max=job.seconds_max,
            background=self._config.appearance.background,
        )
        for place, pixels in decoded:
            out[place] = pixels
            places.append(place)
        frames = Slot(job.out.offset, out.nbytes)
        return FramesDecoded(job.job_id, tuple(places), frames, (process_time() - processor_start) * 1e3)

    def _prepare(self, job: Prepare, spans: list[Span]) -> Prepared:
        if self._processor is None:
            raise Failed(detail="a media worker without a model was asked to process a picture")
        self._check(job.header)
        fit = (job.options.fit_width, job.options.fit_height)
        with _Stretch("media_decode", spans):
            source = self._arena.view(job.source)
            if job.header.format == RAW:
                pixels = frame_pixels(source, job.header)
            else:
                pixels = to_pixels(source, job.header, self._scratch, look=self._config.appearance, fit=fit)
        with _Stretch("mm_processor", spans):
            picture = self._processor.process(pixels, job.options)
            bundle = write_bundle(self._arena.view(job.out), job.out, picture.arrays)
        image = PreparedImage(picture.replacement, picture.rows, bundle, picture.meta, tuple(spans))
        return Prepared(job.job_id, image)

    def _check(self, header: ImageHeader) -> None:
        """The decoder's size is compared with the header's, so the header's pixels are the ones to judge."""
        limit = self._config.pixels_max
        if limit and header.pixels > limit:
            raise ImageTooLarge(
                f"The picture is {header.width}x{header.height} pixels, {header.pixels} in all; at most {limit} are decoded.",
                limit=limit,
                actual=header.pixels,
                limit_name=DECODE_LIMIT,
            )


def _too_costly() -> MediaCostly:
    return MediaCostly("Decoding the picture needs more memory than one picture may use.")


class _Stretch:
    """Times a stage and records it however the block is left."""

    def __init__(self, stage: Stage, spans: list[Span]) -> None:
        self._stage: Stage = stage
        self._spans = spans
        self._start = 0.0
        self._processor_start = 0.0

    def __enter__(self) -> None:
        self._start = now()
        self._processor_start = process_time()

    def __exit__(self, *_: object) -> None:
        # Of all threads of the process: it does one job at a time.
        cost_ms = (process_time() - self._processor_start) * 1e3
        self._spans.append(Span(self._stage, self._start, now(), cost_ms))
