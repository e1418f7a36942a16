"""Step 1: judge the request by its body alone, and wait for a place. Nothing of its media has been touched yet.

Covers: number of pictures, the chat template, the text's share of the context, places. Does not cover: what a picture costs, which only its
header tells (step 4). A text request never waits here: it needs no media place.
"""

from __future__ import annotations

from foveate.core.clock import now
from foveate.core.errors import InvalidParameter, InvalidPart, PromptTooLong, TooManyImages
from foveate.core.stages import Span
from foveate.journey.job import Job
from foveate.journey.tools import Tools


async def admit(job: Job, tools: Tools) -> None:
    """Render and count the prompt, then take a place. Raises TooManyImages, PromptInvalid, PromptTooLong."""
    request = job.request
    if request.videos:
        raise InvalidPart("This server takes no videos.", param=request.videos[0].param, part=request.videos[0].index)
    images = len(request.images)
    images_max = request.caller.budget.max_images
    if images > images_max:
        raise TooManyImages(
            f"The request has {images} pictures; at most {images_max} are allowed.",
            param="messages",
            limit=images_max,
            actual=images,
            limit_name="max_images",
        )
    job.prompt = await tools.text.render(request)
    job.text_tokens = tools.prompt_side.tokens_min(job.prompt)
    answer_tokens(job, tools, visual_tokens=0)
    job.token_ids = await tools.text.tokenize(job.prompt, [""] * images)
    job.text_tokens = len(job.token_ids)
    job.ledger.counts.text_tokens = job.text_tokens
    answer_tokens(job, tools, visual_tokens=0)
    # The pictures of an unpacked body were on their way before this step: that time is theirs, not a wait for a place.
    started = job.unpacked.ended_at if job.unpacked is not None and images else request.received_at
    if images:
        await tools.multimodal_places.enter()
        job.place = tools.multimodal_places
    job.inputs_ready_at = now()
    job.ledger.span(Span("admission", started, job.inputs_ready_at))


def answer_tokens(job: Job, tools: Tools, *, visual_tokens: int) -> int:
    """Return how many tokens the answer may have. Raises PromptTooLong when prompt and answer do not fit the context.

    ``visual_tokens`` is what the pictures add to the text, estimated or counted.
    """
    context = tools.prompt_side.context_tokens_max
    prompt = job.text_tokens + visual_tokens
    asked = job.request.sampling.tokens_max
    if context - prompt < max(asked, 1):
        wanted = f"{asked} more were asked for the answer" if asked else "there is no room for an answer"
        raise PromptTooLong(
            f"This model's context is {context} tokens; the prompt has at least {prompt} ({visual_tokens} for pictures), and {wanted}.",
            param="messages" if job.request.kind == "chat" else "prompt",
            limit=context,
            actual=prompt + max(asked, 1),
        )
    tokens = asked or min(context - prompt, tools.limits.answer_tokens_default)
    if job.request.sampling.tokens_min > tokens:
        raise InvalidParameter(
            f"min_tokens is {job.request.sampling.tokens_min}, more than the {tokens} tokens the answer may have.",
            param="min_tokens",
            limit=tokens,
            actual=job.request.sampling.tokens_min,
        )
    return tokens
