"""Put a video's frames where the video stood in the conversation.

Each frame is a picture of its own, with a short text before it that says when it is shown: ``<1.5 seconds>``, which Qwen3-VL was trained
on and others read as text. Frames whose time nobody knows (lists of JPEGs) have none: an invented one would be a lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from foveate.core.request import ImagePart, Part, TextPart, Turn, VideoPart
from foveate.journey.job import Job
from foveate.journey.s1_admit import answer_tokens
from foveate.journey.tools import Tools

Moments = Sequence[float | None]


async def unfold(job: Job, tools: Tools) -> None:
    """Render and count the prompt again, now that frames are known: those that are there, else those that are to be decoded.

    Raises PromptInvalid, PromptTooLong.
    """
    if not job.request.videos or job.request.document is not None:
        return  # where the request is passed on, whoever answers it unfolds them
    films = {
        item.part.index: [frame.moment for frame in item.frames] or item.film.moments
        for item in job.items
        if item.film is not None
    }
    turns = tuple(unfolded(turn, films) for turn in job.request.turns)
    job.prompt = await job.serving.text.render(msgspec.structs.replace(job.request, turns=turns))
    job.token_ids = await job.serving.text.tokenize(job.prompt, [""] * job.prompt.pictures)
    job.text_tokens = len(job.token_ids)
    job.ledger.counts.text_tokens = job.text_tokens
    answer_tokens(job, tools, visual_tokens=0)


def unfolded(turn: Turn, films: Mapping[int, Moments]) -> Turn:
    """Return ``turn`` with a picture for each moment of its videos, whose moments are in ``films`` by the part's index."""
    return Turn(turn.role, tuple(_parts(turn.parts, films)))


def _parts(parts: Sequence[Part], films: Mapping[int, Moments]) -> Iterator[Part]:
    for part in parts:
        if not isinstance(part, VideoPart):
            yield part
            continue
        for moment in films[part.index]:
            if moment is not None:
                yield TextPart(f"<{moment:.1f} seconds>")
            yield ImagePart(part.index, part.param, part.ref)
