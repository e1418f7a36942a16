"""Between tally and price: which version of the model answers, now that the contents are known.

The request's first medium decides for all of it. A prompt is one model's, so two versions can never be mixed in it; and a conversation,
which sends its pictures again with every turn, stays with the version that its first picture met, so that nothing is encoded twice.
Text, which has no contents, is answered by the version that serves.

What was rendered and priced by the version that serves is rendered and priced again where the other one takes over: its template,
tokenizer and processor may differ.
"""

from __future__ import annotations

from msgspec.structs import replace

from foveate.core.errors import FoveateError
from foveate.core.media import ImageOptions
from foveate.core.request import ImagePart, MediaPart
from foveate.journey.job import Job
from foveate.journey.s1_admit import read_options, read_prompt
from foveate.journey.tools import Tools


def options_of(part: MediaPart, job: Job, tools: Tools) -> ImageOptions:
    """Return the processor options of one medium, as the version that answers takes them."""
    low = isinstance(part, ImagePart) and part.detail == "low"
    # How many frames a video has is not known when this is first asked; it is taken to have several.
    several = len(job.request.media) > 1 or bool(job.request.videos)
    bounds = [bound for bound in (job.asked.pixels_max, tools.limits.detail_low_pixels if low else 0) if bound]
    return job.serving.prompt_side.options(replace(job.asked, pixels_max=min(bounds, default=0), several=several))


async def choose(job: Job, tools: Tools) -> None:
    """Give the request to the version on trial, if there is one that its contents fall to.

    Raises UnsupportedParameter, InvalidParameter, ImageTooLarge, PromptInvalid, PromptTooLong, ImageShapeRefused.
    """
    trial = tools.roll_out.trial
    first = job.items[0].blob if job.items else None
    if trial is None or first is None:
        return
    job.trial = trial
    role = trial.role_of(first.digest)
    if role == "canary" and trial.new.engine.ready and trial.new.media.ready:
        job.serve_by(trial.new)
        job.ledger.role = role
        read_options(job, tools)
        await read_prompt(job, tools)
        _price_again(job, tools)
    else:
        job.ledger.role = "stable"


def _price_again(job: Job, tools: Tools) -> None:
    counts = job.ledger.counts
    for item in job.items:
        # The size that a budget had it made to fit stays: it depends on no model.
        fit = item.options.fit_width, item.options.fit_height
        item.options = replace(options_of(item.part, job, tools), fit_width=fit[0], fit_height=fit[1])
        if item.estimate is None or item.shape is None:
            continue
        counts.visual_tokens -= item.estimate.tokens * item.pictures
        try:
            item.estimate = job.serving.prompt_side.estimate(item.shape.width, item.shape.height, item.options)
        except FoveateError as error:
            error.part, error.param = item.part.index, item.part.param
            raise
        counts.visual_tokens += item.estimate.tokens * item.pictures
