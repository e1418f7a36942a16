"""Step 4: read the header, and judge by it. No pixel has been decoded; from here on it is known what the picture costs."""

from __future__ import annotations

from foveate.core.budget import Budget
from foveate.core.clock import now
from foveate.core.errors import ImageTooLarge
from foveate.core.media import ImageHeader
from foveate.core.stages import Span
from foveate.journey.job import Item, Job
from foveate.journey.s1_admit import answer_tokens
from foveate.journey.tools import Tools
from foveate.media.probe import probe as read_header


async def probe(item: Item, job: Job, tools: Tools) -> None:
    """Price the picture. Raises MediaUnsupported, MediaUndecodable, TooManyFrames, ImageTooLarge, ImageShapeRefused, PromptTooLong."""
    assert item.blob is not None
    item.header = read_header(tools.arena.view(item.blob.slot), tools.limits.pictures)
    _check_size(item.header, job.request.caller.budget)
    item.estimate = tools.prompt_side.estimate(item.header.width, item.header.height, item.options)
    priced = sum(other.estimate.tokens for other in job.items if other.estimate is not None)
    answer_tokens(job, tools, visual_tokens=priced)
    job.ledger.counts.pixels += item.header.pixels
    item.ledger.span(Span("media_fetch", item.started_at, now()))


def _check_size(header: ImageHeader, budget: Budget) -> None:
    shape = f"The picture is {header.width}x{header.height} pixels"
    limits = (
        ("max_image_width", budget.max_image_width, header.width, "wide"),
        ("max_image_height", budget.max_image_height, header.height, "high"),
        ("max_image_pixels", budget.max_image_pixels, header.pixels, "pixels in all"),
    )
    for name, limit, actual, what in limits:
        if actual > limit:
            raise ImageTooLarge(
                f"{shape}; at most {limit} {what} are allowed.", limit=limit, actual=actual, limit_name=name
            )
