"""Prefill may begin while later pictures of the same request are still encoded.

What a picture becomes in the prompt is known when it has been processed, before it is encoded. So once all are processed, the prompt's
tokens are, and an engine that can (:data:`foveate.engines.arrivals.OVERLAP`) is given the prompt as soon as there is enough of it before
the first picture that is missing. The others follow as they come, in any order; the engine answers when all are there.

The encoding goes on in tasks that the request's own scope holds (``Job.tasks``): a picture that fails ends the request in the engine too,
and a request that ends ends what is still encoded for it alone. A video's frames are known when all of them are encoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np

from foveate.engines.arrivals import OVERLAP
from foveate.journey.job import Item, Job
from foveate.journey.s7_generate import input_of, spell_out
from foveate.journey.tools import Tools

AHEAD_TOKENS_MIN: Final = 64
"""So many prompt tokens before the first missing picture are worth beginning with: a template's opening words are not. A block of
:mod:`foveate.engines.prompt_chain`."""


def until_worth(
    take: Callable[[Item, Job, Tools], Awaitable[None]],
) -> Callable[[Job, Tools], Awaitable[None]]:
    """Return the step that takes all media through ``take`` at once, and ends when all are through or prefill is worth beginning."""

    async def begin(job: Job, tools: Tools) -> None:
        left = set(range(len(job.items)))

        async def one(place: int) -> None:
            item = job.items[place]
            await take(item, job, tools)
            left.remove(place)
            _bring(item, job)
            job.moved.set()

        assert job.tasks is not None, "a request's work has a scope"
        for place in tuple(left):
            job.tasks.create_task(one(place))
        while left:
            await job.moved.wait()
            job.moved.clear()
            if left and await _worth_beginning(job, tools):
                return

    return begin


def _bring(item: Item, job: Job) -> None:
    """Let the engine have a picture that it was given the prompt without."""
    if job.arrivals is not None and item.place is not None:
        job.arrivals.put(item.place, input_of(item))


async def _worth_beginning(job: Job, tools: Tools) -> bool:
    """Tell whether the engine can begin, and with enough. Raises PromptTooLong, as :func:`foveate.journey.s7_generate.spell_out`."""
    engine = job.serving.engine
    if not tools.limits.prefill_overlap or OVERLAP not in engine.features or not engine.ready:
        return False
    if not all(item.ready_at or item.foreseen for item in job.items):
        return False
    if not job.spelled:
        await spell_out(job, tools)
        job.starts = _starts(job, engine.info.picture_token_id)
    missing = next((place for place, item in enumerate(job.shown) if item.lease is None), None)
    return missing is not None and missing < len(job.starts) and job.starts[missing] >= AHEAD_TOKENS_MIN


def _starts(job: Job, picture_token_id: int) -> list[int]:
    """Return where each picture's rows begin among the prompt's tokens; none where they do not fit, which is the engine's to refuse."""
    rows = [item.facts.rows for item in job.shown]
    found = np.flatnonzero(np.asarray(job.token_ids, np.int64) == picture_token_id)
    ends = np.cumsum(rows)
    if not rows or min(rows) < 1 or ends[-1] != len(found):
        return []
    return [int(found[end - count]) for end, count in zip(ends, rows, strict=True)]
