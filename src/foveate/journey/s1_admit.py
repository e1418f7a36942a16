"""Step 1: judge the request by its body alone, and wait for a place. Nothing of its media has been touched yet.

Covers: parameters that the engine does not have, number of pictures and videos, the tenant's requests under way, the chat template, the
text's share of the context, places. Does not cover: what a picture costs, which only its header tells (step 4). A text request never waits
here: it needs no media place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from foveate.core.clock import now
from foveate.core.errors import (
    ErrorRecord,
    FoveateError,
    ImageTooLarge,
    InvalidParameter,
    PromptTooLong,
    UnsupportedParameter,
)
from foveate.core.media import InlineRef, brought
from foveate.core.request import MediaPart, Truncation
from foveate.core.stages import Span
from foveate.core.tool_use import AUTO_FEATURE
from foveate.decisions import budget
from foveate.decisions.budget import CONTEXT_LIMIT
from foveate.journey.given import judge_given
from foveate.journey.job import Job
from foveate.journey.tools import Tools


async def admit(job: Job, tools: Tools) -> None:
    """Count the media, read the prompt, take a place.

    Raises TooManyImages, TooManyVideos, UnsupportedParameter, InvalidParameter, PromptInvalid, PromptTooLong, HouseFull.
    """
    judge_parameters(job)
    judge_parts(job)
    judge_given(job, tools)
    read_options(job, tools)
    count_in(job, tools)
    await read_prompt(job, tools)
    await take_place(job, tools)


def judge_parameters(job: Job) -> None:
    """Refuse what the engine does not do. Raises UnsupportedParameter, InvalidParameter."""
    beyond = job.request.sampling.beyond(job.serving.engine.features)
    if beyond is not None:
        constraint = job.request.sampling.structured_outputs
        param = constraint.param if beyond == "structured_outputs" and constraint is not None else beyond
        raise UnsupportedParameter(f"{param} is not supported by the engine of this server.", param=param)
    judge_tools(job)
    if job.request.truncation is not None and job.request.media:
        raise InvalidParameter(
            "A prompt with pictures or videos cannot be truncated: they would lose their places.",
            param="truncate_prompt_tokens",
        )


def judge_tools(job: Job) -> None:
    """Refuse calls that the engine cannot find in an answer. Raises UnsupportedParameter, InvalidParameter."""
    use, features = job.request.tool_use, job.serving.engine.features
    if use is None or use.choice == "none":
        return
    if "tools" not in features:
        raise UnsupportedParameter("tools are not supported by the engine of this server.", param="tools")
    if use.choice == "auto" and AUTO_FEATURE not in features:
        raise UnsupportedParameter(
            "This server does not know how its model writes calls, so tool_choice should be none, required or a function.",
            param="tool_choice",
        )
    if use.choice in ("required", "named") and job.request.sampling.structured_outputs is not None:
        # vLLM would hold the answer to the calls' schema and drop the other without a word.
        raise InvalidParameter(
            "An answer that must be a call of a tool cannot be held to another form too: leave out response_format and structured_outputs, "
            "or tool_choice.",
            param="tool_choice",
        )


def judge_parts(job: Job) -> None:
    """Judge how many pictures and videos there are, as far as the body tells. Raises TooManyImages, TooManyVideos."""
    judge_pictures(job)
    judge_videos(job)


def judge_pictures(job: Job) -> None:
    """Judge how many pictures there are. Raises TooManyImages."""
    images = job.request.images
    # Where repeats do not count, no contents are known yet that would tell which part is one too many.
    beyond = images[job.budget.max_images :] if job.budget.count_repeats else []
    with _naming(beyond):
        budget.judge_references(job.budget, len(images), len({_named(part, job) for part in images}))


def judge_videos(job: Job) -> None:
    """Judge how many videos there are. Raises TooManyVideos."""
    videos = job.request.videos
    with _naming(videos[job.budget.max_videos :]):
        budget.judge_videos(job.budget, len(videos))


def read_options(job: Job, tools: Tools) -> None:
    """Set what the request asks of the picture processor. Raises UnsupportedParameter, InvalidParameter, ImageTooLarge."""
    asked = job.serving.prompt_side.wanted(job.request.processor)
    if asked.pixels_min > job.budget.max_image_pixels:
        raise ImageTooLarge(
            f"Pictures should be scaled up to more than the {job.budget.max_image_pixels} pixels allowed.",
            param="mm_processor_kwargs",
            limit_name="max_image_pixels",
            limit=job.budget.max_image_pixels,
            actual=asked.pixels_min,
        )
    job.asked = asked


@contextmanager
def _naming(beyond: Sequence[MediaPart]) -> Iterator[None]:
    """Have an error name the first part that is one too many, or the messages as a whole where none can be told."""
    try:
        yield
    except FoveateError as error:
        error.param = beyond[0].param if beyond else "messages"
        error.part = beyond[0].index if beyond else None
        raise


def count_in(job: Job, tools: Tools) -> None:
    """Open the account of a request with media. Raises HouseFull when its tenant has too many under way."""
    if job.request.media:
        job.charge = tools.in_flight.open(job.request.caller, None if job.unpacked is None else job.unpacked.charge)


async def read_prompt(job: Job, tools: Tools) -> None:
    """Render and count the prompt, each video still one picture. Raises PromptInvalid, PromptTooLong."""
    job.prompt = await job.serving.text.render(job.request)
    job.text_tokens = job.serving.prompt_side.tokens_min(job.prompt)
    if job.request.truncation is None:
        answer_tokens(job, tools, visual_tokens=0)
    job.token_ids = await job.serving.text.tokenize(job.prompt, [""] * job.prompt.pictures)
    if job.request.truncation is not None:
        job.token_ids = _truncated(job, job.request.truncation)
    job.text_tokens = len(job.token_ids)
    job.ledger.counts.text_tokens = job.text_tokens
    answer_tokens(job, tools, visual_tokens=0)


def _truncated(job: Job, asked: Truncation) -> list[int]:
    """Return what is kept of the prompt's tokens."""
    room = job.serving.prompt_side.context_tokens_max - max(job.request.sampling.tokens_max, 1)
    most = max(room, 1) if asked.tokens < 0 else asked.tokens
    return job.token_ids[:most] if asked.keep == "beginning" else job.token_ids[-most:]


async def take_place(job: Job, tools: Tools) -> None:
    """Wait for a media place, where the request has media. Raises HouseFull when too many wait already."""
    # The pictures of an unpacked body were on their way before this step: that time is theirs, not a wait for a place.
    media = job.request.media
    started = job.unpacked.ended_at if job.unpacked is not None and media else job.request.received_at
    if media:
        await tools.multimodal_places.enter(job.request.caller)
        job.place = tools.multimodal_places
    job.inputs_ready_at = now()
    job.ledger.span(Span("admission", started, job.inputs_ready_at))


def _named(part: MediaPart, job: Job) -> object:
    """Return what tells this medium from others before it is fetched: its content where that is here already, else its URL."""
    ref = brought(part.ref)
    if isinstance(ref, InlineRef) and job.unpacked is not None:
        blob = job.unpacked.blobs[ref.index]
        return part.ref if isinstance(blob, ErrorRecord) else blob.digest
    return part.ref


def answer_tokens(job: Job, tools: Tools, *, visual_tokens: int) -> int:
    """Return how many tokens the answer may have. Raises PromptTooLong when prompt and answer do not fit the context.

    ``visual_tokens`` is what the pictures add to the text, estimated or counted.
    """
    context = job.serving.prompt_side.context_tokens_max
    prompt = job.text_tokens + visual_tokens
    asked = job.request.sampling.tokens_max
    if context - prompt < max(asked, 1):
        wanted = f"{asked} more were asked for the answer" if asked else "there is no room for an answer"
        raise PromptTooLong(
            f"This model's context is {context} tokens; the prompt has at least {prompt} ({visual_tokens} for pictures), and {wanted}.",
            param="messages" if job.request.kind == "chat" else "prompt",
            limit_name=CONTEXT_LIMIT,
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
