"""The journey of a request that a server behind this one answers: the same door, then the document instead of a prompt.

==========  ===========================================  =====================================  ==================================
step        in → out                                     its limit                              refuses with
==========  ===========================================  =====================================  ==================================
admit       body → a place                               max_images, max_videos                 TooMany*, HouseFull
begin       parts → one item for each                    –                                      –
allow       URL → checked URL                            URL policy                             UrlInvalid, UrlRefused
bring       reference → bytes, header, price             as fetch, probe and tally              as fetch, probe and tally
price       all headers → what all cost                  max_total_*, max_visual_tokens         MediaTotalTooLarge, HouseFull
make ready  uuid → content; bytes → embeddings           as embed                               MediaIdConflict; as embed
address     items → what is passed on                    –                                      –
pass on     what is passed on → the answer, piecewise    upstreams' places, deadline            Upstream*, QueueFull
==========  ===========================================  =====================================  ==================================

Media that every upstream of the model is to fetch itself are not fetched here: only the URL policy is asked. Nothing is made to fit, since
the bytes go on as they came; and prompts are not rendered, which is for whoever runs the model.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from blake3 import blake3

from foveate.caches.encoder import EncoderEntry
from foveate.core.clock import now
from foveate.core.document import MediaHole
from foveate.core.errors import FoveateError, InvalidPart
from foveate.core.media import RAW, UrlRef
from foveate.core.memory import Slot
from foveate.core.request import VideoPart
from foveate.core.stages import Span
from foveate.engines.port import PictureInput, Relay, RelayedMedia, RelayEvent, RelayUsage, RelayWork
from foveate.journey.film import FRAME_LIST
from foveate.journey.job import Item, Job
from foveate.journey.recall import recall
from foveate.journey.s1_admit import count_in, judge_parts, take_place
from foveate.journey.s3_fetch import fetch
from foveate.journey.s4_probe import probe
from foveate.journey.s5_price import tally
from foveate.journey.s6_embed import bind_name, embed
from foveate.journey.tools import Tools
from foveate.media.headers.container import video_container

TEXT_BYTES_PER_TOKEN: Final = 4
"""Of JSON text, for weighing requests against each other; nothing is refused by it."""
PIXELS_PER_TOKEN: Final = 28 * 28
"""What a visual token is of in Qwen2-VL and kin: the guess for a model that nothing is known of. Nothing is refused by it."""
VIDEO_FRAMES: Final = 32
"""What vLLM takes of a video unless told otherwise; for the same guess."""


async def admit(job: Job, tools: Tools) -> None:
    """Count the media and take a place. Raises TooManyImages, TooManyVideos, HouseFull."""
    judge_parts(job)
    count_in(job, tools)
    await take_place(job, tools)


async def bring(item: Item, job: Job, tools: Tools) -> None:
    """Fetch, probe and count a medium, unless only its URL goes on. Raises as these steps do."""
    if isinstance(item.part, VideoPart) and _relay(tools).takes_embeddings:
        raise InvalidPart("Videos are not passed on as embeddings by this server. Send pictures.")
    if isinstance(item.part.ref, UrlRef) and not _relay(tools).needs_bytes(job.request.model):
        item.ready_at = now()
        return
    for step in (fetch, probe, tally):
        await step(item, job, tools)


async def make_ready(item: Item, job: Job, tools: Tools) -> None:
    """Bind the client's own name for the medium, and make its embeddings where those go on. Raises MediaIdConflict and, in the latter
    case, as recall and embed do.
    """
    if item.blob is None:
        return
    if _relay(tools).takes_embeddings:
        await recall(item, job, tools)
        await embed(item, job, tools)
        return
    bind_name(item, job, tools)
    item.ready_at = now()
    # The wait for the request's other media.
    item.ledger.span(Span("media_fetch", item.probed_at, item.ready_at))
    item.ledger.ready(item.ready_at)


async def address(job: Job, tools: Tools) -> None:
    """Set ``job.passing``."""
    request = job.request
    assert request.document is not None
    job.inputs_ready_at = max((item.ready_at for item in job.items), default=job.inputs_ready_at)
    text_bytes = sum(len(piece) for piece in request.document.content if not isinstance(piece, MediaHole))
    job.passing = RelayWork(
        request_id=request.id,
        kind=request.kind,
        model=request.model,
        document=request.document,
        media=tuple(_media(item, job, tools) for item in job.items),
        text_tokens=(text_bytes + len(request.document.first)) // TEXT_BYTES_PER_TOKEN,
        stream=request.stream,
        usage=request.include_usage,
        salt=blake3(job.scope.encode()).hexdigest(length=16) if job.scope else "",
        deadline=job.deadline,
        trace=job.ledger.onward,
    )


async def pass_on(job: Job, tools: Tools) -> AsyncGenerator[RelayEvent, None]:
    """Yield the answer as it comes. Closing it closes the connection to whoever answers at once. Raises as :class:`Relay` does."""
    assert job.passing is not None
    begun = False
    counts = job.ledger.counts
    async with aclosing(_timed(_relay(tools).forward(job.passing), job)) as events:
        async for event in events:
            arrived = now()
            if not begun:
                begun = True
                sent = max(event.spans[0].end, job.inputs_ready_at)
                job.ledger.span(Span("llm_queue", job.inputs_ready_at, sent))
                job.ledger.span(Span("upstream", sent, arrived))
                job.ledger.first_token(arrived)
                counts.upstream = event.server
            for choice in event.outputs:
                job.ledger.output(1, arrived, choice)
            if event.usage is not None:
                _settle(event.usage, job, tools)
            yield event


async def _timed(events: AsyncGenerator[RelayEvent, None], job: Job) -> AsyncGenerator[RelayEvent, None]:
    """Yield the events; note where the time went of a request that failed before the first of them."""
    begun = False
    try:
        async with aclosing(events):
            async for event in events:
                begun = True
                yield event
    except FoveateError:
        if not begun:
            job.ledger.span(Span("upstream", job.inputs_ready_at, now()))
        raise


def _settle(usage: RelayUsage, job: Job, tools: Tools) -> None:
    """Count tokens as whoever answered counted them; until then each piece of output counted as one."""
    counts = job.ledger.counts
    counts.output_tokens = counts.output_tokens if usage.output_tokens is None else usage.output_tokens
    counts.cached_tokens = usage.cached_tokens or 0
    counts.upstream_queue_ms, counts.upstream_prefill_ms = usage.queue_ms, usage.prefill_ms
    # Of media that nobody here can price it is not known what part of the prompt they are.
    if usage.prompt_tokens is not None and (counts.visual_tokens or not job.items):
        counts.text_tokens = max(usage.prompt_tokens - counts.visual_tokens, 0)


def _media(item: Item, job: Job, tools: Tools) -> RelayedMedia:
    url = item.part.ref.url if isinstance(item.part.ref, UrlRef) else None
    if item.lease is not None:
        entry = item.lease.entry
        assert isinstance(entry, EncoderEntry), "pixels do not go on to another server"
        picture = PictureInput(entry.embeddings, entry.rows, entry.meta, entry.content)
        return RelayedMedia(_named(entry.content, job.scope), "", (), url, entry.rows, picture)
    what = item.blob.digest if item.blob is not None else f"url {url}"
    here = item.blob is not None and item.hold is not None
    mime, slots = _bytes(item, tools) if here else ("", ())
    tokens = item.estimate.tokens * item.pictures if item.estimate is not None else 0
    return RelayedMedia(_named(what, job.scope), mime, slots, url, tokens or _guessed(item))


def _bytes(item: Item, tools: Tools) -> tuple[str, tuple[Slot, ...]]:
    """Return what a data URL is made of. Whoever answers looks at the bytes; the type is there to be read by people."""
    assert item.blob is not None
    assert item.header is not None
    if item.film is not None:
        return "video/jpeg", tuple(slot for slot, _ in item.film.encoded)
    if isinstance(item.part, VideoPart):
        container = video_container(tools.arena.view(item.blob.slot))
        assert container != FRAME_LIST
        return f"video/{container}", (item.blob.slot,)
    assert item.header.format != RAW
    return f"image/{item.header.format}", (item.blob.slot,)


def _named(what: str, scope: str) -> str:
    """Return the name that upstreams know a medium by: its content's, and of whoever may share it, so that a name cannot be guessed to
    mean another tenant's.
    """
    return f"foveate-{blake3(f'{scope} {what}'.encode()).hexdigest()}"


def _guessed(item: Item) -> int:
    """Return about how many tokens a medium is, where nothing is known of the model."""
    if item.header is None:
        return PIXELS_PER_TOKEN
    frames = item.pictures if item.film is not None else VIDEO_FRAMES if isinstance(item.part, VideoPart) else 1
    return max(1, item.header.pixels * frames // PIXELS_PER_TOKEN)


def _relay(tools: Tools) -> Relay:
    assert tools.relay is not None, "only a server with upstreams passes requests on"
    return tools.relay
