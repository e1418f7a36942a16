"""Step 4: read the header, and judge the medium by it. No pixel has been decoded; from here on it is known what the medium costs.

A video's header is read by a media worker (:mod:`foveate.journey.film`).
"""

from __future__ import annotations

import msgspec

from foveate.core.budget import Adjustment
from foveate.core.clock import now
from foveate.core.media import EmbedsRef, ImageHeader
from foveate.core.request import VideoPart
from foveate.core.stages import Span
from foveate.decisions.budget import Shape, judge_shape
from foveate.journey.film import open_film
from foveate.journey.film_whole import look_at_film
from foveate.journey.given import look_at_given
from foveate.journey.job import Item, Job
from foveate.journey.tools import Tools
from foveate.media.probe import probe as read_header


async def probe(item: Item, job: Job, tools: Tools) -> None:
    """Price the picture or video, at the size that its tier makes it fit.

    Raises MediaUnsupported, MediaUndecodable, TooManyFrames, VideoTooLong, ImageTooLarge, ImageShapeRefused.
    """
    assert item.blob is not None
    if isinstance(item.part.ref, EmbedsRef):
        await look_at_given(item, job, tools)
        return
    if isinstance(item.part, VideoPart):
        look = open_film if job.request.document is None else look_at_film
        item.header, since = await look(item, job, tools)
    elif item.recalled is not None and item.recalled.header is not None:
        since = item.started_at
        item.header = item.recalled.header
    else:
        since = item.started_at
        item.header = read_header(tools.arena.view(item.blob.slot), tools.limits.pictures)
    _measure(item, item.header, job, tools)
    item.probed_at = now()
    item.ledger.span(Span("media_fetch", since, item.probed_at))


def _measure(item: Item, header: ImageHeader, job: Job, tools: Tools) -> None:
    """Judge the size of what the header announces, and price it."""
    shape = Shape(header.width, header.height)
    counts = job.ledger.counts
    counts.largest_width = max(counts.largest_width, shape.width)
    counts.largest_height = max(counts.largest_height, shape.height)
    of_video = isinstance(item.part, VideoPart)
    fitted = judge_shape(job.budget, shape, tools.limits.decode_pixels_max, of_video=of_video)
    item.shape = shape
    if fitted.limit_name is not None:
        shrink(item, job, fitted.shape, fitted.limit_name)
    item.estimate = job.serving.prompt_side.estimate(item.shape.width, item.shape.height, item.options)


def shrink(item: Item, job: Job, shape: Shape, limit_name: str) -> None:
    """Have the picture scaled down once it is decoded, and note that it was, and why."""
    assert item.shape is not None
    part = item.part
    job.adjustments.append(Adjustment(part.index, part.param, limit_name, str(item.shape), str(shape)))
    job.ledger.counts.adjustments += 1
    item.options = msgspec.structs.replace(item.options, fit_width=shape.width, fit_height=shape.height)
    item.shape = shape
