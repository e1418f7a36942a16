"""Make a picture's embeddings that no cache holds: media decode and processor in a media worker, then the vision encoder. For an engine
that takes pixels the way ends after the media worker.

Runs in a flight, on behalf of every request that waits for the same key, so it has its own deadline and holds its own leases. Its spans
join without a gap: a hop between processes counts to the stage that waits for it (media_decode includes the way to the media worker,
encoder_queue the way from there to the encoder, embedding_transfer the way back).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from foveate.caches.encoder import EncoderEntry
from foveate.caches.keys import EncoderKey
from foveate.caches.processor import ProcessorEntry
from foveate.caches.single_flight import Notice
from foveate.core.clock import now
from foveate.core.errors import EncodeFailed, EngineUnavailable, Failed, FoveateError
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import TensorBundle
from foveate.core.stages import Span, Stage
from foveate.encoders.port import Purpose
from foveate.journey.holds import Lease, LooseLease, SlotHold
from foveate.journey.job import Made
from foveate.journey.restarts import encoder_back
from foveate.journey.room import take
from foveate.journey.serving import Serving
from foveate.journey.source import Encoded, Source
from foveate.journey.tools import Tools
from foveate.media.messages import JobFailed, Prepare, Prepared, TooSmall
from foveate.runtime.arena import aligned

T = TypeVar("T")

ALIGNMENT_BYTES = 64 * 8
"""Room for the alignment of the embedding tensor and its DeepStack levels (at most seven)."""


async def produce(
    key: EncoderKey, source: Source, tools: Tools, started: float, *, known: Notice[PreparedImage] | None = None
) -> Made:
    """Prepare and encode one picture, and offer what was made to the caches. ``started`` is when it was asked for. What the prompt needs to
    know of the picture is told as ``known`` before it is encoded.

    Raises what its media worker and its encoder refuse it with.
    """
    deadline = started + tools.limits.item_seconds_max
    kept: Lease[ProcessorEntry] | None
    if not isinstance(source.start, Encoded):
        kept = source.start.again()
    elif source.cached:
        kept = tools.processor_cache.get(key.processor_key)
    else:
        kept = tools.processor_cache.peek(key.processor_key)
    with _blamed("media_decode", started):
        inputs = kept if kept is not None else await _prepare(key, source, tools, started=started, deadline=deadline)
    prepared = inputs.entry.prepared
    before = () if kept is not None else prepared.spans
    if source.serving.takes_pixels:
        return Made(inputs, before, kept is not None)
    if known is not None:
        known.tell(prepared)
    try:
        with _blamed("vision_encode", before[-1].end if before else started, before, until_begun="encoder_queue"):
            lease, spans = await _encode(key, prepared, before, source, tools, deadline=deadline, started=started)
    finally:
        inputs.release()
    if key in tools.encoder_cache:
        # The inputs are read again only if the embeddings are evicted first, so they go before others.
        tools.processor_cache.demote(key.processor_key)
    return Made(lease, spans, kept is not None)


@contextmanager
def _blamed(
    stage: Stage, started: float, before: Sequence[Span] = (), *, until_begun: Stage | None = None
) -> Iterator[None]:
    """Note on an error where the time went: the stages before, and the rest to the stage that failed.

    ``until_begun`` has the rest unless an encoder failed the picture. As with one that is encoded in the end, all time before the batch
    that does it is waiting: for an encoder that is not there, and at one that ended.
    """
    try:
        yield
    except FoveateError as error:
        blamed = stage if until_begun is None or isinstance(error, EncodeFailed) else until_begun
        error.spans = (*before, Span(blamed, started, now()))
        raise


async def _prepare(
    key: EncoderKey, source: Source, tools: Tools, *, started: float, deadline: float
) -> Lease[ProcessorEntry]:
    known = tools.bad_media.find(key.processor_key, now())
    if known is not None:
        raise known.error()
    assert isinstance(source.start, Encoded)
    size = source.start.estimate.input_bytes_max
    out = take(tools, size)
    try:
        reply = await _run(source, key, out, tools, deadline)
        if isinstance(reply, TooSmall):
            larger = take(tools, reply.bytes_needed)
            out.release()
            out = larger
            reply = await _run(source, key, out, tools, deadline)
        if isinstance(reply, JobFailed):
            tools.bad_media.note(key.processor_key, reply.error, now())
            raise reply.error.error()
        if not isinstance(reply, Prepared):
            raise Failed(detail=f"the processor's output grew from {size} bytes between two runs on one picture")
    except BaseException:
        out.release()
        raise
    return _keep_inputs(key, reply.image, out, started, tools if source.cached else None)


async def _run(
    source: Source, key: EncoderKey, out: SlotHold, tools: Tools, deadline: float
) -> Prepared | TooSmall | JobFailed:
    assert isinstance(source.start, Encoded)
    job = Prepare(source.start.blob.slot, source.start.header, key.options, out.slot)
    held = (source.start.hold.retain(), out.retain())

    def done() -> None:
        """The worker touches neither slot any more, whatever became of those who asked."""
        for hold in held:
            hold.release()

    reply = await source.serving.media.run(job, whom=source.whom, on_done=done, deadline=deadline)
    assert isinstance(reply, Prepared | TooSmall | JobFailed), "a media worker answered another kind of job"
    return reply


def _keep_inputs(
    key: EncoderKey, image: PreparedImage, hold: SlotHold, started: float, tools: Tools | None
) -> Lease[ProcessorEntry]:
    hold.shrink(image.inputs.used)
    decode, process = image.spans
    spans = (
        Span("media_decode", started, decode.end, decode.cost_ms),
        Span("mm_processor", decode.end, process.end, process.cost_ms),
    )
    inputs = TensorBundle(hold.slot, image.inputs.tensors, image.inputs.used)
    prepared = PreparedImage(image.replacement, image.rows, inputs, image.meta, spans)
    entry = ProcessorEntry(prepared, _cost(image.spans))
    kept = None if tools is None else tools.processor_cache.put(key.processor_key, entry, aligned(hold.slot.size))
    return LooseLease(entry, hold) if kept is None else _given_away(kept, hold)


async def _encode(
    key: EncoderKey,
    prepared: PreparedImage,
    before: Sequence[Span],
    source: Source,
    tools: Tools,
    *,
    deadline: float,
    started: float,
) -> tuple[Lease[EncoderEntry], tuple[Span, ...]]:
    hold = take(tools, prepared.rows * source.serving.engine.info.embedding_bytes_per_row + ALIGNMENT_BYTES)
    try:
        purpose = Purpose(source.whom, source.request, key.digest)
        encoded = await _encode_once_restarted(prepared, hold, source.serving, tools, purpose, deadline=deadline)
        if encoded.rows != prepared.rows:
            raise EncodeFailed(detail=f"{encoded.rows} rows encoded, {prepared.rows} placeholders in the prompt")
        if source.serving.encoder_version != key.encoder_version:
            raise EngineUnavailable(detail="the engine restarted with another encoder while it encoded")
    except BaseException:
        hold.release()
        raise
    tools.metrics.observe("foveate_embedding_transfer_bytes", value=encoded.embeddings.used)
    spans = (*before, *_joined(encoded.spans, before[-1].end if before else started, now()))
    hold.shrink(encoded.embeddings.used)
    embeddings = TensorBundle(hold.slot, encoded.embeddings.tensors, encoded.embeddings.used)
    cost = _cost((*prepared.spans, *encoded.spans))
    entry = EncoderEntry(prepared.replacement, prepared.rows, prepared.meta, embeddings, cost, key.name())
    kept = tools.encoder_cache.put(key, entry, aligned(hold.slot.size)) if source.cached else None
    return (LooseLease(entry, hold) if kept is None else _given_away(kept, hold)), spans


def _given_away(lease: Lease[T], hold: SlotHold) -> Lease[T]:
    hold.give_away()
    return lease


async def _encode_once_restarted(
    prepared: PreparedImage, hold: SlotHold, serving: Serving, tools: Tools, purpose: Purpose, *, deadline: float
) -> EncodedImage:
    try:
        return await serving.encoder.encode(prepared, hold.slot, deadline=deadline, purpose=purpose)
    except EngineUnavailable:
        if not await encoder_back(serving, deadline, tools.limits.engine_wait_seconds):
            raise
        return await serving.encoder.encode(prepared, hold.slot, deadline=deadline, purpose=purpose)


def _joined(spans: Sequence[Span], queued: float, arrived: float) -> tuple[Span, ...]:
    """Return the encoder's spans stretched over the ways there and back."""
    encode = next(span for span in spans if span.stage == "vision_encode")
    return (
        Span("encoder_queue", min(queued, encode.start), encode.start),
        encode,
        Span("embedding_transfer", encode.end, max(arrived, encode.end)),
    )


def _cost(spans: Sequence[Span]) -> dict[Stage, float]:
    """Milliseconds of work by stage that a later hit saves; waiting is not work."""
    return {span.stage: (span.end - span.start) * 1e3 for span in spans if span.stage != "encoder_queue"}
