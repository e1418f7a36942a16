"""Step 5: judge the media of a request together, now that every header is known and before any pixel is decoded.

:func:`tally` runs as each medium becomes known, so that a request that is too much already does not wait for the rest of its media;
:func:`price` when all are. What is made to fit the limit on visual tokens is made so here, since that takes all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from foveate.core.media import UrlRef
from foveate.core.request import ImagePart
from foveate.decisions import budget
from foveate.decisions.budget import Shape
from foveate.journey.job import Item, Job
from foveate.journey.s1_admit import answer_tokens
from foveate.journey.s4_probe import shrink
from foveate.journey.tools import Tools

TOKENS: Final = "max_visual_tokens"
Check = Callable[[], object]
"""Judges one limit; raises what it refuses with."""


async def tally(item: Item, job: Job, tools: Tools) -> None:
    """Add the medium to the request's totals, and judge them so far. Raises TooManyImages, MediaTotalTooLarge, PromptTooLong, HouseFull."""
    count(item, job)
    # Where tokens may be made to fit, they are judged when they have been.
    prices = () if job.budget.fits(TOKENS) else tokens(job, tools)
    for check in (*arrived(item, job), *decoded(job), *prices):
        check()


async def price(job: Job, tools: Tools) -> None:
    """Shrink pictures where the tier says so, judge what all cost, and charge it. Raises MediaTotalTooLarge, PromptTooLong, HouseFull."""
    if not job.items:
        return
    await fit_tokens(job, tools)
    for check in (*tokens(job, tools), *charges(job)):
        check()


def count(item: Item, job: Job) -> None:
    """Add what a medium costs, as far as that is known, to the totals: a repeated one costs tokens again, but bytes and pixels only where
    repeats count.
    """
    assert item.blob is not None
    item.counted = True
    counts = job.ledger.counts
    if item.estimate is not None:
        counts.visual_tokens += item.estimate.tokens * item.pictures
    if job.budget.count_repeats or not item.repeats:
        counts.media_bytes += item.blob.size
    if item.header is None:
        return
    # The same content is decoded once more where other frames of it are taken, or other options hold.
    decoded = (item.blob.digest, type(item.part), item.options, item.pictures, item.film.picks if item.film else ())
    if job.budget.count_repeats or decoded not in job.decoded:
        job.decoded.add(decoded)
        counts.pixels += item.header.pixels * item.pictures


def arrived(item: Item, job: Job) -> tuple[Check, ...]:
    """Return the checks of the contents and bytes that are here so far, ``item`` being the last.

    What was fetched is charged at once, as it was counted while it streamed. What came with the body is charged when all of it is known:
    only then can a request that is too much for any house be told from one that finds this one full.
    """
    counts, charge = job.ledger.counts, job.charged
    images = len({other.blob.digest for other in job.items if other.blob and isinstance(other.part, ImagePart)})
    checks: tuple[Check, ...] = (
        lambda: budget.judge_images(job.budget, images) if not job.budget.count_repeats else None,
        lambda: budget.judge_total_bytes(job.budget, counts.media_bytes),
        lambda: charge.judge("bytes", counts.media_bytes),
    )
    came_with_the_body = [other for other in job.items if not isinstance(other.part.ref, UrlRef)]
    if not isinstance(item.part.ref, UrlRef) and not all(other.counted for other in came_with_the_body):
        return checks
    return (*checks, lambda: charge.top_up("bytes", job.bytes_here))


def decoded(job: Job) -> tuple[Check, ...]:
    """Return the check of the pixels that will be decoded, as far as they are known."""
    return (lambda: budget.judge_total_pixels(job.budget, job.ledger.counts.pixels),)


def tokens(job: Job, tools: Tools) -> tuple[Check, ...]:
    """Return the checks of visual tokens: the tier's, and the context's."""
    counts = job.ledger.counts
    return (
        lambda: budget.judge_visual_tokens(job.budget, counts.visual_tokens),
        lambda: answer_tokens(job, tools, visual_tokens=counts.visual_tokens),
    )


def charges(job: Job) -> tuple[Check, ...]:
    """Return the checks against what is under way. What can never fit is told before what does not fit now."""
    counts, charge = job.ledger.counts, job.charged
    return (
        lambda: charge.judge("pixels", counts.pixels),
        lambda: charge.judge("visual_tokens", counts.visual_tokens),
        lambda: charge.top_up("bytes", counts.media_bytes),
        lambda: charge.top_up("pixels", counts.pixels),
        lambda: charge.top_up("visual_tokens", counts.visual_tokens),
    )


async def fit_tokens(job: Job, tools: Tools) -> None:
    """Shrink pictures, the largest first, until their tokens are within the tier's limit, where it is on ``fit`` and can be met so."""
    job.adjustments.sort(key=lambda change: change.part)
    counts, items = (
        job.ledger.counts,
        [item for item in job.items if item.estimate is not None and item.shape is not None],
    )
    if counts.visual_tokens <= job.budget.max_visual_tokens or not job.budget.fits(TOKENS):
        return

    def cost(index: int, shape: Shape) -> int:
        item = items[index]
        return job.serving.prompt_side.estimate(shape.width, shape.height, item.options).tokens * item.pictures

    # What a client's own embeddings cost cannot be made less.
    fixed = sum(item.given.rows for item in job.items if item.given is not None)
    shapes = [item.shape for item in items if item.shape is not None]
    # In a thread: a price can take a millisecond, and this asks for dozens.
    fitted = await asyncio.to_thread(budget.fit_tokens, shapes, cost, job.budget.max_visual_tokens - fixed)
    if fitted is None:
        return
    for item, shape in zip(items, fitted, strict=True):
        if shape != item.shape:
            shrink(item, job, shape, TOKENS)
            item.estimate = job.serving.prompt_side.estimate(shape.width, shape.height, item.options)
    counts.visual_tokens = fixed + sum(
        item.estimate.tokens * item.pictures for item in items if item.estimate is not None
    )
    job.adjustments.sort(key=lambda change: change.part)
