"""Step 6 for videos: decode the chosen frames, and take each of them through the embedding of a picture.

A frame's digest is made of the video's, its time and its size, so that frames whose embeddings are cached are not decoded again. The
others are decoded in groups of bounded size, one group after the other. The times of a video are those of the frame of each group that was
ready last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from blake3 import blake3

from foveate.caches.keys import EncoderKey
from foveate.core.clock import now
from foveate.core.media import RAW, Blob, FramePick, ImageHeader, ImageOptions
from foveate.core.memory import Slot
from foveate.core.request import ImagePart
from foveate.core.stages import Span
from foveate.journey.film import run_video_job
from foveate.journey.given import embed_given
from foveate.journey.job import Item, Job
from foveate.journey.room import take
from foveate.journey.s6_embed import bind_name, cache_key, key_of
from foveate.journey.s6_embed import embed as embed_picture
from foveate.journey.together import together
from foveate.journey.tools import Tools
from foveate.media.messages import DecodeFrames, FramesDecoded
from foveate.observe.critical_path import critical_item
from foveate.observe.ledger import ItemLedger

GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""Decoded frames of one video that lie in the arena at once: ten of full HD. A larger frame is a group of its own."""
_NO_BYTES: Final = Slot(0, 0)
DECODING_SHARE: Final = 0.9
"""Of the time that a media job may take: the decoder stops by itself before its worker would be killed."""


async def embed(item: Item, job: Job, tools: Tools) -> None:
    """Set the lease of a picture, or of each of a video's frames.

    Raises MediaUndecodable, MediaCostly, ArenaFull and what :func:`foveate.journey.s6_embed.embed` raises.
    """
    film = item.film
    if item.given is not None:
        await embed_given(item, job, tools)
        return
    if film is None:
        await embed_picture(item, job, tools)
        return
    assert item.blob is not None
    begun = now()
    # The wait for the request's other media: no frame is decoded before all are priced.
    item.ledger.span(Span("media_fetch", item.probed_at, begun))
    bind_name(item, job, tools)
    if item.recalled is not None:
        await _embed_all(item, item.frames, job, tools)
    elif film.encoded:
        item.frames = [_encoded_frame(item, slot, header) for slot, header in film.encoded]
        await _embed_all(item, item.frames, job, tools)
    else:
        size = max(1, GROUP_BYTES_MAX // _frame_bytes(item))
        for start in range(0, len(film.picks), size):
            await _embed_group(item, film.picks[start : start + size], job, tools)
    for frame in item.frames:
        item.ledger.spent.add(frame.ledger.spent)
    item.frames = [frame for frame in item.frames if frame.lease is not None]
    job.ledger.counts.frames -= item.pictures - len(item.frames)
    bind_name(item, job, tools)
    item.release_media()
    item.ready_at = now()
    item.ledger.ready(item.ready_at)


async def _embed_group(item: Item, picks: Sequence[FramePick], job: Job, tools: Tools) -> None:
    frames = [_frame(item, pick) for pick in picks]
    item.frames += frames
    waiting = [
        (frame, pick)
        for frame, pick in zip(frames, picks, strict=True)
        if not _found(frame, _digest(item, pick), job, tools)
    ]
    if waiting:
        await _decode(item, waiting, job, tools)
        await _embed_all(item, [frame for frame, _ in waiting if frame.blob is not None], job, tools)


def _found(frame: Item, digest: str, job: Job, tools: Tools) -> bool:
    """Lease the frame's embeddings, or pixels, if the cache has them. If not, asking is left to the embedding: it counts as one miss."""
    frame.key = key = key_of(digest, frame.options, job, tools)
    if job.serving.takes_pixels:
        if key.processor_key not in tools.processor_cache:
            return False
        frame.lease = tools.processor_cache.get(key.processor_key)
        if frame.lease is not None:
            frame.ledger.spared("processor_cache", frame.lease.entry.cost_ms)
        job.ledger.counts.processor_cache_hits += 1
        return True
    if key not in tools.encoder_cache:
        return False
    frame.lease = tools.encoder_cache.get(key)
    if frame.lease is not None:
        frame.ledger.spared("encoder_cache", frame.lease.entry.cost_ms)
    job.ledger.counts.encoder_cache_hits += 1
    return True


async def _decode(item: Item, waiting: Sequence[tuple[Item, FramePick]], job: Job, tools: Tools) -> None:
    """Set blob and hold of the frames that can be decoded."""
    assert item.film is not None
    assert item.blob is not None
    assert item.hold is not None
    assert item.shape is not None
    started = now()
    size = _frame_bytes(item)
    picks = tuple(pick for _, pick in waiting)
    out = take(tools, size * len(picks))
    try:
        reply = await run_video_job(
            DecodeFrames(
                item.blob.slot,
                item.film.header,
                picks,
                item.shape.width,
                item.shape.height,
                seconds_max=job.serving.media.job_seconds_max * DECODING_SHARE,
                out=out.slot,
            ),
            (item.hold, out),
            job,
            tools,
            key=(job.scope, item.blob.digest, picks, item.shape.width, item.shape.height),
        )
        assert isinstance(reply, FramesDecoded)
        item.ledger.spent.media_cpu_ms += reply.cpu_ms
        ended = now()
        for place in reply.places:
            frame, pick = waiting[place]
            frame.blob = Blob(Slot(out.slot.offset + place * size, size), _digest(item, pick))
            frame.hold = out.retain()
            frame.probed_at = ended
    finally:
        out.release()
        item.ledger.span(Span("media_decode", started, now()))


async def _embed_all(item: Item, frames: Sequence[Item], job: Job, tools: Tools) -> None:
    try:
        await together(embed_picture(frame, job, tools) for frame in frames)
    finally:
        views = [frame.ledger.view() for frame in frames]
        last = critical_item(views)
        if last is not None:
            item.ledger.spans(views[last].spans)


def _frame(item: Item, pick: FramePick) -> Item:
    """Return a frame's item before it is decoded."""
    assert item.shape is not None
    frame = _bare(item, _frame_options(item), ImageHeader(RAW, item.shape.width, item.shape.height))
    frame.moment = pick.seconds
    return frame


def _encoded_frame(item: Item, slot: Slot, header: ImageHeader) -> Item:
    assert item.blob is not None
    assert item.hold is not None
    frame = _bare(item, item.options, header)
    frame.blob = Blob(slot, _derived(item.blob.digest, slot.offset - item.blob.slot.offset))
    frame.hold = item.hold.retain()
    return frame


def _bare(item: Item, options: ImageOptions, header: ImageHeader) -> Item:
    part = item.part
    at = now()
    return Item(
        part=ImagePart(part.index, part.param, part.ref),
        ledger=ItemLedger(part.index),
        started_at=at,
        options=options,
        header=header,
        shape=item.shape,
        probed_at=at,
        estimate=item.estimate,
    )


def named_frames(item: Item) -> list[Item]:
    """Return the items of the frames of a video that was named instead of sent; none of anything else."""
    film = item.film
    if film is None:
        return []
    assert item.blob is not None
    digest = item.blob.digest
    frames: list[Item] = []
    for pick in film.picks:
        frames.append(_frame(item, pick))
        frames[-1].blob = Blob(_NO_BYTES, _digest(item, pick))
    for slot, header in film.encoded:
        frames.append(_bare(item, item.options, header))
        frames[-1].blob = Blob(_NO_BYTES, _derived(digest, slot.offset))
    for frame in frames:
        frame.recalled = item.recalled
    return frames


def encoder_keys(item: Item, job: Job, tools: Tools) -> list[EncoderKey]:
    """Return the key of the embeddings of each picture that the model gets to see of a priced item."""
    film = item.film
    if film is None:
        return [cache_key(item, job, tools)]
    assert item.blob is not None
    if film.encoded:
        starts = [slot.offset - item.blob.slot.offset for slot, _ in film.encoded]
        return [key_of(_derived(item.blob.digest, start), item.options, job, tools) for start in starts]
    options = _frame_options(item)
    return [key_of(_digest(item, pick), options, job, tools) for pick in film.picks]


def _frame_options(item: Item) -> ImageOptions:
    """A decoded frame has its final size, so that it is not to be scaled again."""
    return msgspec.structs.replace(item.options, fit_width=0, fit_height=0)


def _digest(item: Item, pick: FramePick) -> str:
    assert item.blob is not None
    return _derived(item.blob.digest, pick.pts, item.shape)


def _derived(*what: object) -> str:
    return blake3(" ".join(map(str, what)).encode()).hexdigest()


def _frame_bytes(item: Item) -> int:
    assert item.shape is not None
    return item.shape.pixels * 3
