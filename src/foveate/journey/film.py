"""From a video's bytes to its facts and the frames that are to be looked at. A media worker reads; the tier judges; nothing is decoded but
what the worker needs to know which way up it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from foveate.core.budget import Adjustment
from foveate.core.clock import now
from foveate.core.errors import InvalidParameter, InvalidPart, MediaCostly, MediaNotHeld, TooManyFrames
from foveate.core.media import RAW, ImageHeader, VideoHeader
from foveate.core.memory import Slot
from foveate.core.request import VideoPart
from foveate.core.stages import Span
from foveate.decisions.budget import frames_allowed, judge_video_seconds
from foveate.decisions.frames import FrameSampling, choose_frames, sampling_of
from foveate.journey.holds import SlotHold
from foveate.journey.job import Film, Item, Job
from foveate.journey.named_film import NamedFilm, film_of, unpacked
from foveate.journey.tools import Tools
from foveate.media.frame_list import frame_places
from foveate.media.headers.container import video_container
from foveate.media.messages import DecodeFrames, FramesDecoded, JobFailed, ProbeVideo, VideoProbed
from foveate.media.probe import Accepted, probe

FRAME_LIST = "jpeg-list"
_JPEG_ONLY = Accepted(("jpeg",))


async def open_film(item: Item, job: Job, tools: Tools) -> tuple[ImageHeader, float]:
    """Set ``item.film``; return the header of one frame, and when it was known.

    Raises InvalidParameter, MediaNotHeld, MediaUnsupported, MediaUndecodable, MediaCostly, VideoTooLong, TooManyFrames.
    """
    part = item.part
    assert isinstance(part, VideoPart)
    assert item.blob is not None
    known = None if item.recalled is None else unpacked(item.recalled)
    container = video_container(tools.arena.view(item.blob.slot)) if known is None else known.header.container
    frames_allowed(job.budget, 1)  # whatever it is, it has one
    try:
        sampling = sampling_of(job.budget, num_frames=part.num_frames, fps=part.fps)
    except ValueError as error:
        raise InvalidParameter(f"The video's sampling is not valid: {error}.", param=part.param) from error
    if container == FRAME_LIST and part.fps is not None:
        raise InvalidParameter("A list of frames has no times, so fps means nothing; use num_frames.", param=part.param)
    if known is not None:
        header, end = _open_named(item, job, sampling, known), item.started_at
    elif container == FRAME_LIST:
        header, end = await _open_list(item, job, sampling, tools), item.started_at
    else:
        started = now()
        item.ledger.span(Span("media_fetch", item.started_at, started))
        try:
            header = await _open_video(item, container, sampling, job, tools)
        finally:
            end = now()
            item.ledger.span(Span("media_decode", started, end))
    if part.fps is not None and sampling.fps < part.fps:
        _note(item, job, "video_fps", f"{part.fps:g} fps", f"{sampling.fps:g} fps")
    assert item.film is not None
    job.ledger.counts.frames += item.pictures
    return header, end


async def _open_video(item: Item, container: str, sampling: FrameSampling, job: Job, tools: Tools) -> ImageHeader:
    assert item.blob is not None
    assert item.hold is not None
    found = await run_video_job(
        ProbeVideo(item.blob.slot, container, sampling, job.budget, tools.limits.decode_pixels_max),
        (item.hold,),
        job,
        tools,
        key=(job.scope, item.blob.digest, sampling, job.budget.max_video_seconds),
    )
    assert isinstance(found, VideoProbed)
    item.ledger.spent.media_cpu_ms += found.cpu_ms
    job.ledger.counts.video_seconds += found.header.seconds
    judge_video_seconds(job.budget, found.header.seconds)
    _judge_frames(item, job, found.wanted)
    item.film = Film(found.header, sampling, found.wanted, found.picks)
    return ImageHeader(RAW, found.header.width, found.header.height)


def _open_named(item: Item, job: Job, sampling: FrameSampling, known: NamedFilm) -> ImageHeader:
    """Take a video as it was when it was sent. Raises MediaNotHeld when other frames are asked for than were then."""
    if sampling != known.sampling:
        raise MediaNotHeld("The video was sent before with another choice of frames. Send it again with this one.")
    job.ledger.counts.video_seconds += known.header.seconds
    judge_video_seconds(job.budget, known.header.seconds)
    _judge_frames(item, job, known.wanted)
    item.film = film_of(known)
    return known.frame


async def _open_list(item: Item, job: Job, sampling: FrameSampling, tools: Tools) -> ImageHeader:
    """Choose of a client's own frames: dropping some is an excess like any other, so all of them are wanted unless the client said."""
    assert item.blob is not None
    whole = item.blob.slot
    places = frame_places(tools.arena.view(whole))
    asked = len(places) if sampling.asked_max is None else sampling.asked_max
    chosen = choose_frames(range(len(places)), len(places), FrameSampling(sampling.frames_max, asked_max=asked))
    _judge_frames(item, job, chosen.wanted)
    slots = [Slot(whole.offset + places[at][0], places[at][1]) for at in chosen.places]
    headers: list[ImageHeader] = []
    for slot in slots:
        headers.append(probe(tools.arena.view(slot), _JPEG_ONLY))
        await asyncio.sleep(0)  # one costs milliseconds at worst, and a list may have hundreds
    width, height = headers[0].width, headers[0].height
    if any((header.width, header.height) != (width, height) for header in headers):
        raise InvalidPart("The frames of one list must all have the same size.")
    facts = VideoHeader(FRAME_LIST, "mjpeg", width, height, len(places), 0.0)
    item.film = Film(facts, sampling, chosen.wanted, encoded=tuple(zip(slots, headers, strict=True)))
    return headers[0]


def _judge_frames(item: Item, job: Job, wanted: int) -> None:
    try:
        allowed = frames_allowed(job.budget, wanted)
    except TooManyFrames:
        job.ledger.counts.frames += wanted
        raise
    if allowed < wanted:
        _note(item, job, "max_video_frames", f"{wanted} frames", f"{allowed} frames")


def _note(item: Item, job: Job, limit_name: str, before: str, after: str) -> None:
    job.adjustments.append(Adjustment(item.part.index, item.part.param, limit_name, before, after))
    job.ledger.counts.adjustments += 1


async def run_video_job(
    work: ProbeVideo | DecodeFrames, holds: tuple[SlotHold, ...], job: Job, tools: Tools, *, key: Hashable
) -> VideoProbed | FramesDecoded:
    """Have a media worker do ``work``, which keeps ``holds`` until the worker is done with them. Raises what it found.

    ``key`` has all that its outcome depends on: with the same one it is not tried again right after it failed.
    """
    known = tools.bad_media.find(key, now())
    if known is not None:
        raise known.error()
    held = [hold.retain() for hold in holds]

    def done() -> None:
        for hold in held:
            hold.release()

    try:
        reply = await job.serving.media.run(
            work,
            whom=job.request.caller.tenant,
            on_done=done,
            deadline=now() + tools.limits.item_seconds_max,
        )
    except MediaCostly as error:
        error.public = "Decoding the video exceeded the limits on memory or time."
        raise
    if isinstance(reply, JobFailed):
        tools.bad_media.note(key, reply.error, now())
        raise reply.error.error()
    assert isinstance(reply, VideoProbed | FramesDecoded), "a media worker answered another kind of job"
    return reply
