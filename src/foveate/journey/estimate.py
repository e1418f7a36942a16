"""What a request would cost, and everything that would refuse it, without decoding a pixel or asking the engine.

Takes the same steps as a request up to the price, but goes on after a refusal where it can, so that a client sees all of them at once. It
waits for a place, fetches and holds accounts as a request does while it runs. Caches are looked into without counting or touching.

Sums count every medium of which the quantity is known, refused ones too. Not looked at is what would take effort that no request would
cause: further URLs and videos once there are too many or they are too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from foveate.core.errors import (
    Failed,
    FoveateError,
    HouseFull,
    MediaTooLarge,
    MediaTotalTooLarge,
    TooManyImages,
    TooManyVideos,
)
from foveate.core.media import EmbedsRef, UrlRef
from foveate.core.request import ImagePart, MediaPart, VideoPart
from foveate.decisions.budget import PARTS_MAX, Shape, shape_refusals
from foveate.journey import begin_media, take_steps
from foveate.journey.choose import choose
from foveate.journey.given import judge_given
from foveate.journey.job import Item, Job
from foveate.journey.port import Estimate, ItemEstimate, ItemKind
from foveate.journey.recall import judge_held
from foveate.journey.s1_admit import (
    count_in,
    judge_parameters,
    judge_pictures,
    judge_videos,
    read_options,
    read_prompt,
    take_place,
)
from foveate.journey.s2_allow import allow
from foveate.journey.s3_fetch import fetch
from foveate.journey.s4_probe import probe
from foveate.journey.s5_price import Check, arrived, charges, count, decoded, fit_tokens, tokens
from foveate.journey.s6_frames import encoder_keys
from foveate.journey.tools import Tools
from foveate.journey.unfold import unfold


class Refusals:
    """What would refuse the request, each once, in the order it was found."""

    def __init__(self) -> None:
        self.found: list[FoveateError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep a refusal and go on. What is the server's own failure passes through."""
        try:
            yield
        except Failed:
            raise
        except FoveateError as error:
            self.add(error)

    def add(self, error: FoveateError) -> None:
        """Keep a refusal, unless one by the same limit of the same medium was kept already."""
        known = {(other.code, other.limit_name, other.part) for other in self.found}
        if (error.code, error.limit_name, error.part) not in known:
            self.found.append(error)

    def check(self, checks: Iterable[Check]) -> None:
        """Make all checks."""
        for each in checks:
            with self.collected():
                each()


async def estimate(job: Job, tools: Tools) -> Estimate:
    """Price a request. Raises only what is no refusal: cancellation, and failures of the server itself."""
    refusals = Refusals()
    refusals.check(
        (
            lambda: judge_pictures(job),
            lambda: judge_videos(job),
            lambda: judge_given(job, tools),
            lambda: read_options(job, tools),
        )
    )
    if job.request.document is None:
        refusals.check((lambda: judge_parameters(job),))
        with refusals.collected():
            await read_prompt(job, tools)
    with refusals.collected():
        count_in(job, tools)
        await take_place(job, tools)
    failed: dict[int, FoveateError] = {}
    if job.request.media and job.place is None:
        failed = dict.fromkeys((part.index for part in job.request.media), refusals.found[-1])
    elif job.request.media:
        failed = await _look(job, tools, refusals)
    return _estimate(job, tools, refusals.found, failed)


async def _look(job: Job, tools: Tools, refusals: Refusals) -> dict[int, FoveateError]:
    """Fetch and probe what a request might have; return why media were not priced."""
    await begin_media(job, tools)
    # A request that has too many is refused unread; so are here those that are too many.
    failed = {item.part.index: error for error in refusals.found for item in _beyond(job, error)}
    tasks: list[asyncio.Task[None]] = []

    async def one(item: Item) -> None:
        before = len(refusals.found)
        for step in (allow, fetch, _name, probe):
            try:
                await take_steps(item, job, tools, (step,))
            except FoveateError as error:
                failed.setdefault(item.part.index, error)
                in_all = isinstance(error, MediaTotalTooLarge | HouseFull)
                if in_all:
                    # Found while this one arrived, but no one medium's doing.
                    error.part, error.param = None, None if error.param == item.part.param else error.param
                refusals.add(error)
                if in_all:
                    stop(item)
                if item.blob is None:
                    job.ledger.counts.media_bytes += _size(item.part, None, error) or 0
                    return
        if item.header is not None and item.estimate is None:
            _price_refused(item, job, tools, refusals)
        count(item, job)
        refused = len(refusals.found) > before
        before = len(refusals.found)
        refusals.check(arrived(item, job))
        if len(refusals.found) > before and not refused:
            stop(item)

    def stop(last: Item) -> None:
        """Fetch no more for an estimate, as no request would get further."""
        for other, task in zip(wanted, tasks, strict=True):
            if not task.done() and other is not last and _costs_effort(other):
                failed.setdefault(other.part.index, refusals.found[-1])
                task.cancel()

    wanted = [item for item in job.items if item.part.index not in failed]
    async with asyncio.TaskGroup() as group:
        tasks += [group.create_task(one(item)) for item in wanted]
    with refusals.collected():
        await choose(job, tools)
    if not any(item.film is None for item in job.items if isinstance(item.part, VideoPart)):
        with refusals.collected():
            await unfold(job, tools)
    await fit_tokens(job, tools)
    for item in job.items:
        with refusals.collected():
            await _judge_held(item, job, tools, failed)
    refusals.check((*decoded(job), *tokens(job, tools), *charges(job)))
    return failed


def _beyond(job: Job, error: FoveateError) -> list[Item]:
    """Return the items that are too many by a refusal that came before anything was read, and are not looked at.

    Pictures that came with the body are, as their price is there to be read; but of no more than any request may have.
    """
    if isinstance(error, TooManyVideos):
        return [item for item in job.items if isinstance(item.part, VideoPart)][job.budget.max_videos :]
    if isinstance(error, TooManyImages):
        images = [item for item in job.items if isinstance(item.part, ImagePart)]
        within = job.budget.max_images
        return [item for at, item in enumerate(images) if at >= within and (at >= PARTS_MAX or _costs_effort(item))]
    return []


def _costs_effort(item: Item) -> bool:
    """Whether looking at a medium takes a transfer or a worker, which is not spent on what no request would get to."""
    return isinstance(item.part.ref, UrlRef) or isinstance(item.part, VideoPart)


def _price_refused(item: Item, job: Job, tools: Tools, refusals: Refusals) -> None:
    """Price a medium as it came, whose shape was refused, and tell of every limit that it exceeds."""
    assert item.header is not None
    item.shape = shape = Shape(item.header.width, item.header.height)
    of_video = isinstance(item.part, VideoPart)
    found: list[FoveateError] = list(
        shape_refusals(job.budget, shape, tools.limits.decode_pixels_max, of_video=of_video)
    )
    try:
        item.estimate = job.serving.prompt_side.estimate(shape.width, shape.height, item.options)
    except FoveateError as error:
        found.append(error)
    for refusal in found:
        refusal.part, refusal.param = item.part.index, item.part.param
        refusals.add(refusal)


def _size(part: MediaPart, item: Item | None, error: FoveateError | None) -> int | None:
    """Return a medium's bytes: of one that came with the body they are known even where it is refused for them."""
    if item is not None and item.blob is not None:
        return item.blob.size
    if isinstance(error, MediaTooLarge) and error.actual is not None and not isinstance(part.ref, UrlRef):
        return int(error.actual)
    return None


async def _judge_held(item: Item, job: Job, tools: Tools, failed: dict[int, FoveateError]) -> None:
    if item.part.index in failed:
        return
    try:
        await take_steps(item, job, tools, (judge_held,))
    except FoveateError as error:
        failed[item.part.index] = error
        raise


async def _name(item: Item, job: Job, tools: Tools) -> None:
    """Look whether the part's ``uuid`` means other content; an estimate binds no name."""
    assert item.blob is not None
    if item.part.uuid is not None and item.recalled is None:
        tools.aliases.check(job.request.caller.tenant, item.part.uuid, item.blob.digest)


def _estimate(job: Job, tools: Tools, refusals: list[FoveateError], failed: dict[int, FoveateError]) -> Estimate:
    under_way = {item.part.index: item for item in job.items}
    items = tuple(
        _item(part, under_way.get(part.index), failed.get(part.index), job, tools) for part in job.request.media
    )
    known = [
        key
        for item in job.items
        if item.estimate is not None and item.given is None
        for key in encoder_keys(item, job, tools)
    ]
    counts = job.ledger.counts
    return Estimate(
        admitted=not refusals,
        complete=all(item.visual_tokens is not None for item in items),
        tier=job.budget.tier,
        bytes=counts.media_bytes,
        pixels=counts.pixels,
        frames=counts.frames,
        text_tokens=job.text_tokens,
        visual_tokens=counts.visual_tokens,
        processor_cache_hits=sum(key.processor_key in tools.processor_cache for key in known),
        encoder_cache_hits=sum(key in tools.encoder_cache for key in known),
        items=items,
        adjustments=tuple(job.adjustments),
        refusals=tuple(error.record() for error in refusals),
    )


def _item(part: MediaPart, item: Item | None, error: FoveateError | None, job: Job, tools: Tools) -> ItemEstimate:
    kind: ItemKind = "video" if isinstance(part, VideoPart) else "image"
    if isinstance(part.ref, EmbedsRef):
        kind = "image_embeds"
    told = ItemEstimate(part.index, part.param, kind, error=None if error is None else error.record())
    told = replace(told, bytes=_size(part, item, error), media_cached=item is not None and item.source != "origin")
    if item is not None and item.given is not None:
        return replace(told, visual_tokens=item.given.rows)
    if item is None or item.header is None:
        return told
    told = replace(told, width=item.header.width, height=item.header.height, pixels=item.header.pixels * item.pictures)
    if item.film is not None:
        told = replace(told, frames=item.pictures, seconds=item.film.header.seconds)
    if item.estimate is None:
        return told
    found = encoder_keys(item, job, tools)
    return replace(
        told,
        visual_tokens=item.estimate.tokens * item.pictures,
        processor_cached=all(key.processor_key in tools.processor_cache for key in found),
        encoder_cached=all(key in tools.encoder_cache for key in found),
    )
