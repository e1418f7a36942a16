"""Step 6: from bytes to embeddings, or to pixels where the engine takes those, by the cheapest way there is.

An encoder-cache hit skips everything; else one flight for each key does the work, whoever asked first: a processor-cache
hit skips media decode and processor, else a media worker does both; then the vision encoder. The flight belongs to none of
those who wait for it: when a waiter is cancelled, the first one included, the others still get their embeddings.

Pixels are what the processor cache holds for such an engine; the encoder cache stays empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from foveate.caches.aliases import Content
from foveate.caches.encoder import EncoderEntry
from foveate.caches.keys import EncoderKey
from foveate.caches.processor import ProcessorEntry
from foveate.caches.single_flight import Notice
from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, FoveateError
from foveate.core.media import RAW, ImageOptions, PreparedImage
from foveate.core.stages import Span
from foveate.journey.holds import Lease
from foveate.journey.job import Foreseen, Item, Job
from foveate.journey.named_film import packed
from foveate.journey.produce import produce
from foveate.journey.source import Encoded, Source
from foveate.journey.tools import Tools
from foveate.journey.trial import Sample


async def embed(item: Item, job: Job, tools: Tools) -> None:
    """Set ``item.lease``.

    Raises MediaIdConflict, MediaUndecodable, MediaCostly, EncodeFailed, QueueFull, ArenaFull, EngineUnavailable.
    """
    assert item.blob is not None
    assert item.header is not None
    assert item.estimate is not None
    bind_name(item, job, tools)
    item.key = key = cache_key(item, job, tools)
    if item.recalled is None and not job.serving.takes_pixels:
        item.lease = tools.encoder_cache.get(key)
    asked = now()
    # The wait for the request's other media: no picture is decoded before all are priced.
    item.ledger.span(Span("media_fetch", item.probed_at, asked))
    if item.lease is not None:
        job.ledger.counts.encoder_cache_hits += 1
        item.ledger.spared("encoder_cache", item.lease.entry.cost_ms)
    else:
        await _join_flight(item, key, job, tools, asked=asked)
    offer_sample(item, key, job)
    item.release_media()
    item.ready_at = now()
    item.ledger.ready(item.ready_at)


async def _join_flight(item: Item, key: EncoderKey, job: Job, tools: Tools, *, asked: float) -> None:
    """Set ``item.lease`` to what one flight makes for all who wait for the same picture."""
    # The flight may outlive this request, so it has a hold of its own on what it starts from.
    start = start_of(item)
    assert start is not None, "a picture to be made has neither bytes nor inputs"
    source = Source(start, job.request.caller.tenant, job.serving, request=job.request.id)
    leave = job.serving.enter()

    def ended() -> None:
        source.release()
        leave()

    known: Notice[PreparedImage] = Notice()
    try:
        made, shared = await tools.flights.share(
            key,
            start=lambda: produce(key, source, tools, asked, known=known),
            lease=lambda made: made.again(),
            ended=ended,
            notice=known,
            hear=lambda prepared: foresee(item, prepared, job),
            # It is the first asker's deadline; who joined late has time left.
            anew=lambda error: isinstance(error, DeadlineExceeded),
        )
    except FoveateError as error:
        item.ledger.spans(since(error.spans, asked))
        raise
    item.lease = made.lease
    if shared:
        item.ledger.spared("in_flight", made.lease.entry.cost_ms)
        if isinstance(made.lease.entry, EncoderEntry):
            tools.encoder_cache.joined(key, made.lease.entry)
        if not made.processor_hit:
            tools.processor_cache.shared()
        job.ledger.counts.shared += 1
    else:
        item.ledger.spent.charge(made.spans)
    if made.processor_hit and not shared:
        job.ledger.counts.processor_cache_hits += 1
        item.ledger.spared("processor_cache", made.lease.entry.cost_ms, "media_decode", "mm_processor")
    item.ledger.spans(since(made.spans, asked))


def foresee(item: Item, prepared: PreparedImage, job: Job) -> None:
    """Note what the prompt needs to know of a picture that is about to be encoded."""
    item.foreseen = Foreseen(prepared.replacement, prepared.rows, prepared.meta)
    job.moved.set()


def start_of(item: Item) -> Encoded | Lease[ProcessorEntry] | None:
    """Return, to be given back by the caller, what the item's embeddings can be made of, if anything."""
    if item.inputs is not None:
        return item.inputs.again()
    if item.hold is None:
        return None
    assert item.blob is not None
    assert item.header is not None
    assert item.estimate is not None
    return Encoded(item.blob, item.hold.retain(), item.header, item.estimate)


def offer_sample(item: Item, key: EncoderKey, job: Job) -> None:
    """Let a trial have the picture encoded by its other version too, if it wants it and there is something to do it from."""
    trial = job.trial
    assert item.header is not None
    # Decoded frames of videos lie together in slots of many megabytes, too much to keep for a look.
    if trial is None or item.lease is None or item.header.format == RAW or not trial.wants(key.digest):
        return
    if not isinstance(item.lease.entry, EncoderEntry):
        return  # embeddings that nobody here sees cannot be compared
    start = start_of(item)
    if start is None:
        return
    by_new = job.serving is trial.new
    other = trial.old if by_new else trial.new
    if not isinstance(start, Encoded) and other.processor_version != key.processor_version:
        # Inputs that a cache held, and no bytes: another processor would have made others, and the encoder is not to be judged by these.
        start.release()
        return
    source = Source(start, job.request.caller.tenant, other, cached=False)
    lease = cast(Lease[EncoderEntry], item.lease.again())
    trial.offer(Sample(key, lease, source, by_new=by_new))


def cache_key(item: Item, job: Job, tools: Tools) -> EncoderKey:
    """Return the key of the picture's embeddings."""
    assert item.blob is not None
    return key_of(item.blob.digest, item.options, job, tools)


def key_of(digest: str, options: ImageOptions, job: Job, tools: Tools) -> EncoderKey:
    """Return the key of a picture's embeddings, by its content and by who may meet it."""
    return EncoderKey(digest, job.serving.processor_version, options, job.encoder_version, job.scope)


def bind_name(item: Item, job: Job, tools: Tools) -> None:
    """Bind the part's ``uuid`` to the content that came with it. A name belongs to its tenant. Raises MediaIdConflict."""
    if item.part.uuid is None or item.recalled is not None:
        return
    assert item.blob is not None
    film = packed(item)
    tenant, name, digest = job.request.caller.tenant, item.part.uuid, item.blob.digest
    if film is None and item.film is not None:
        # Its frames are not there yet; what is remembered from the last time holds until they are.
        known = tools.aliases.find(tenant, name)
        film = known.film if known is not None and known.digest == digest else None
    tools.aliases.bind(tenant, name, Content(digest, None if item.film is not None else item.header, film))


def since(spans: Sequence[Span], asked: float) -> list[Span]:
    """Return the part of a flight's spans that this request waited for: what went before it joined is not its time."""
    return [Span(span.stage, max(span.start, asked), span.end) for span in spans if span.end > asked]
