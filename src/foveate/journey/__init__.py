"""The request's path: what happens to a request, in order.

``STEPS`` are taken by every request; what stands in an :func:`each` by each of its media, all at once. The last of these may leave pictures
to be encoded while prefill of what stands before them runs (:mod:`foveate.journey.overlap`). A step reads what the
steps before it left in the :class:`~foveate.journey.job.Job` and :class:`~foveate.journey.job.Item`, adds its own, or raises.

==========  ===========================================  =====================================  ==================================
step        in → out                                     its limit                              refuses with
==========  ===========================================  =====================================  ==================================
admit       turns → prompt, text tokens, a place         max_images, max_videos, context        TooMany*, PromptTooLong, HouseFull
begin       parts → one item for each                    –                                      –
allow       URL → checked URL                            URL policy                             UrlInvalid, UrlRefused
fetch       reference → bytes in the arena, digest       max_item_bytes, max_fetch_seconds      MediaTooLarge, Fetch*, DataUrl*
probe       bytes → width, height, frames, price         max_image_*, max_video_*               MediaUnsupported, ImageTooLarge
tally       totals so far                                max_total_*, context, bytes under way  MediaTotalTooLarge, PromptTooLong
choose       contents → the version that answers          a canary's share                       –
unfold      videos → their frames in the prompt          context                                PromptInvalid, PromptTooLong
price       all headers → what all cost, made to fit     max_visual_tokens, what is under way   MediaTotalTooLarge, HouseFull
recall      media that are named → leases                what caches hold                       MediaNotHeld
embed       bytes → embeddings (cache or workers)        queues, job seconds and memory         MediaUndecodable, EncodeFailed
assemble    embeddings → token ids, engine work          context                                PromptTooLong
generate    engine work → tokens                         engine queue, deadline                 QueueFull, EngineFailed
==========  ===========================================  =====================================  ==================================

A request that a server behind this one answers takes ``RELAYED`` (:mod:`foveate.journey.relayed`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from foveate.core.clock import now
from foveate.core.errors import FoveateError
from foveate.core.request import MediaPart, Request
from foveate.core.stages import Span
from foveate.journey import relayed
from foveate.journey.choose import choose, options_of
from foveate.journey.job import Item, Job
from foveate.journey.overlap import until_worth
from foveate.journey.port import Unpacked
from foveate.journey.recall import recall
from foveate.journey.s1_admit import admit
from foveate.journey.s2_allow import allow
from foveate.journey.s3_fetch import fetch
from foveate.journey.s4_probe import probe
from foveate.journey.s5_price import count, price, tally
from foveate.journey.s6_frames import embed
from foveate.journey.s7_generate import assemble
from foveate.journey.together import together
from foveate.journey.tools import Tools
from foveate.journey.unfold import unfold
from foveate.observe.ledger import RequestLedger

Step = Callable[[Job, Tools], Awaitable[None]]
ItemStep = Callable[[Item, Job, Tools], Awaitable[None]]


def each(*steps: ItemStep) -> Step:
    """Return the step that takes every medium through ``steps``, all at once.

    The first failure ends the others and names its medium.
    """
    one = each_one(*steps)

    async def all_at_once(job: Job, tools: Tools) -> None:
        if not job.items:
            return
        await together(one(item, job, tools) for item in job.items)

    return all_at_once


def each_one(*steps: ItemStep) -> Callable[[Item, Job, Tools], Coroutine[Any, Any, None]]:
    """Return the step that takes one medium through ``steps``; a failure names it."""

    async def one(item: Item, job: Job, tools: Tools) -> None:
        try:
            await take_steps(item, job, tools, steps)
        except FoveateError:
            # What is known of a refused medium is what its operator sets the limits by, so it goes into the request log too.
            if item.blob is not None and not item.counted:
                count(item, job)
            raise

    return one


async def begin_media(job: Job, tools: Tools) -> None:
    """Begin with the media. How long they may take to fetch counts from here."""
    job.fetching_since = now()
    job.items = [item_of(part, job, tools) for part in job.request.media]


STEPS: Final[tuple[Step, ...]] = (
    admit,
    begin_media,
    each(allow, fetch, probe, tally),
    choose,
    unfold,
    price,
    each(recall),
    until_worth(each_one(embed)),
    assemble,
)
"""After these, :func:`foveate.journey.s7_generate.generate` streams the answer."""

RELAYED: Final[tuple[Step, ...]] = (
    relayed.admit,
    begin_media,
    each(allow, relayed.bring),
    price,
    each(relayed.make_ready),
    relayed.address,
)
"""The steps of a request that another server answers; after these, :func:`foveate.journey.relayed.pass_on` streams its answer."""


async def prepare(job: Job, tools: Tools) -> None:
    """Take a request through all steps before the engine."""
    for step in STEPS if job.request.document is None else RELAYED:
        await step(job, tools)


def job_of(request: Request, unpacked: Unpacked | None, tools: Tools) -> Job:
    """Return a request's job before its first step, with the rules that hold now."""
    ledger = RequestLedger(
        request_id=request.id,
        model=request.model,
        received_at=request.received_at,
        images=len(request.images),
        videos=len(request.videos),
        tenant=request.caller.tenant,
        tier=request.caller.budget.tier,
        trace=request.trace,
        observed=tools.observer.on,
    )
    if unpacked is not None:
        ledger.spent.media_cpu_ms += unpacked.cpu_ms
    deadline = request.received_at + tools.limits.request_seconds_max
    scope = request.caller.tenant if tools.limits.caches_per_tenant else ""
    return Job(
        request,
        ledger,
        deadline,
        rules=tools.rules.current,
        serving=tools.roll_out.stable,
        scope=scope,
        unpacked=unpacked,
    )


def item_of(part: MediaPart, job: Job, tools: Tools) -> Item:
    """Return a picture's or video's item before its first step."""
    ledger = job.ledger.item(part.index)
    if job.unpacked is not None:
        ledger.span(Span("media_fetch", job.unpacked.started_at, job.unpacked.ended_at))
    return Item(part=part, ledger=ledger, started_at=now(), options=options_of(part, job, tools))


async def take_steps(item: Item, job: Job, tools: Tools, steps: tuple[ItemStep, ...]) -> None:
    """Take one medium through steps; what they raise names it."""
    try:
        for step in steps:
            await step(item, job, tools)
    except FoveateError as error:
        error.part = item.part.index if error.part is None else error.part
        error.param = error.param or item.part.param
        raise
