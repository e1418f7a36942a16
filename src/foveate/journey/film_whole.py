"""Judge a video that is passed on as it is: its length and its size. Which of its frames are looked at is for whoever answers.

The tier's ``max_video_frames`` therefore holds only where the client itself sends frames, as a list of JPEGs.
"""

from __future__ import annotations

from foveate.core.clock import now
from foveate.core.errors import TooManyFrames
from foveate.core.media import RAW, ImageHeader, VideoHeader
from foveate.core.memory import Slot
from foveate.core.request import VideoPart
from foveate.core.stages import Span
from foveate.decisions.budget import judge_video_seconds
from foveate.decisions.frames import FrameSampling
from foveate.journey.film import FRAME_LIST, run_video_job
from foveate.journey.job import Film, Item, Job
from foveate.journey.tools import Tools
from foveate.media.frame_list import frame_places
from foveate.media.headers.container import video_container
from foveate.media.messages import ProbeVideo, VideoProbed
from foveate.media.probe import Accepted, probe


async def look_at_film(item: Item, job: Job, tools: Tools) -> tuple[ImageHeader, float]:
    """Return the header of one frame, and when it was known. Of a list, ``item.film`` has the frames.

    Raises MediaUnsupported, MediaUndecodable, MediaCostly, VideoTooLong, TooManyFrames.
    """
    assert item.blob is not None
    assert item.hold is not None
    assert isinstance(item.part, VideoPart)
    whole = item.blob.slot
    container = video_container(tools.arena.view(whole))
    if container == FRAME_LIST:
        return _look_at_list(item, job, tools), item.started_at
    started = now()
    item.ledger.span(Span("media_fetch", item.started_at, started))
    try:
        sampling = FrameSampling(1)
        found = await run_video_job(
            ProbeVideo(whole, container, sampling, job.budget, tools.limits.decode_pixels_max),
            (item.hold,),
            job,
            tools,
            key=(job.scope, item.blob.digest, sampling, job.budget.max_video_seconds),
        )
        assert isinstance(found, VideoProbed)
    finally:
        ended = now()
        item.ledger.span(Span("media_decode", started, ended))
    job.ledger.counts.video_seconds += found.header.seconds
    judge_video_seconds(job.budget, found.header.seconds)
    return ImageHeader(RAW, found.header.width, found.header.height), ended


def _look_at_list(item: Item, job: Job, tools: Tools) -> ImageHeader:
    assert item.blob is not None
    whole = item.blob.slot
    places = frame_places(tools.arena.view(whole))
    job.ledger.counts.frames += len(places)
    most = job.budget.max_video_frames
    if len(places) > most:
        text = f"The list has {len(places)} frames; at most {most} are allowed."
        raise TooManyFrames(text, limit_name="max_video_frames", limit=most, actual=len(places))
    slots = [Slot(whole.offset + offset, size) for offset, size in places]
    header = probe(tools.arena.view(slots[0]), Accepted(("jpeg",)))
    facts = VideoHeader(FRAME_LIST, "mjpeg", header.width, header.height, len(places), 0.0)
    item.film = Film(facts, FrameSampling(most), len(places), encoded=tuple((slot, header) for slot in slots))
    return header
