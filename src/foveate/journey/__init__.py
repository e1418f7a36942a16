"""The request's path: what happens to a request, in order.

``STEPS`` are taken by every request, ``ITEM_STEPS`` by each of its pictures, all pictures at once. Each step is one file; it reads what the
steps before it left in the :class:`~foveate.journey.job.Job` and :class:`~foveate.journey.job.Item`, adds its own, or raises.

==========  ===========================================  =====================================  ==================================
step        in → out                                     its limit                              refuses with
==========  ===========================================  =====================================  ==================================
admit       turns → prompt, text tokens, a place         max_images, context, places            TooManyImages, PromptTooLong
allow       URL → checked URL                            URL policy                             UrlInvalid, UrlRefused
fetch       reference → bytes in the arena, digest       max_item_bytes, fetch seconds          MediaTooLarge, Fetch*, DataUrl*
probe       bytes → width, height, price                 max_image_*, context                   MediaUnsupported, ImageTooLarge
embed       bytes → embeddings (cache or workers)        queues, job seconds and memory         MediaUndecodable, EncodeFailed
assemble    embeddings → token ids, engine work          context                                PromptTooLong
generate    engine work → tokens                         engine queue, deadline                 QueueFull, EngineFailed
==========  ===========================================  =====================================  ==================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from foveate.core.clock import now
from foveate.core.errors import FoveateError
from foveate.core.media import ImageOptions
from foveate.core.request import ImagePart
from foveate.core.stages import Span
from foveate.journey.job import Item, Job
from foveate.journey.s1_admit import admit
from foveate.journey.s2_allow import allow
from foveate.journey.s3_fetch import fetch
from foveate.journey.s4_probe import probe
from foveate.journey.s5_embed import embed
from foveate.journey.s6_generate import assemble
from foveate.journey.tools import Tools

Step = Callable[[Job, Tools], Awaitable[None]]
ItemStep = Callable[[Item, Job, Tools], Awaitable[None]]

ITEM_STEPS: Final[tuple[ItemStep, ...]] = (allow, fetch, probe, embed)


async def gather(job: Job, tools: Tools) -> None:
    """Take every picture through its steps, all at once. The first failure ends the others and names its picture."""
    if not job.request.images:
        return
    job.items = [_item(part, job, tools) for part in job.request.images]
    try:
        async with asyncio.TaskGroup() as tasks:
            for item in job.items:
                tasks.create_task(_take_steps(item, job, tools))
    except BaseExceptionGroup as group:
        raise _first(group) from group
    job.inputs_ready_at = max(item.ready_at for item in job.items)


STEPS: Final[tuple[Step, ...]] = (admit, gather, assemble)
"""After these, :func:`foveate.journey.s6_generate.generate` streams the answer."""


async def prepare(job: Job, tools: Tools) -> None:
    """Take a request through all steps before the engine."""
    for step in STEPS:
        await step(job, tools)


async def _take_steps(item: Item, job: Job, tools: Tools) -> None:
    try:
        for step in ITEM_STEPS:
            await step(item, job, tools)
    except FoveateError as error:
        error.part = item.part.index if error.part is None else error.part
        error.param = error.param or item.part.param
        raise


def _item(part: ImagePart, job: Job, tools: Tools) -> Item:
    wanted = ImageOptions(
        pixels_max=tools.limits.detail_low_pixels if part.detail == "low" else 0, several=len(job.request.images) > 1
    )
    ledger = job.ledger.item(part.index)
    if job.unpacked is not None:
        ledger.span(Span("media_fetch", job.unpacked.started_at, job.unpacked.ended_at))
    return Item(part=part, ledger=ledger, started_at=now(), options=tools.prompt_side.options(wanted))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to report: of several pictures' errors the earliest in the prompt; our own bugs before all."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.append(error)
    return min(
        leaves, key=lambda error: error.part if isinstance(error, FoveateError) and error.part is not None else -1
    )
