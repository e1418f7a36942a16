"""Embeddings that a client computed itself, in place of a picture: an operator allows them, a media worker reads them, and they cost what
a picture of as many rows costs.

They take the same steps as a picture, with nothing to decode and nothing to encode. No cache of ours keeps them, and the engine knows them
by a name of their own: a hash of their bytes, their grid and their tenant, so that they can never answer for a picture, nor for another
tenant's embeddings. A ``uuid`` beside them is bound as ever, but what it names is not held: they are sent again.
"""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from foveate.caches.aliases import Content
from foveate.caches.encoder import EncoderEntry
from foveate.core.clock import now
from foveate.core.errors import EmbeddingsInvalid, EmbeddingsRefused, Failed
from foveate.core.media import Blob, EmbedsRef
from foveate.core.stages import Span
from foveate.journey.holds import LooseLease, SlotHold
from foveate.journey.job import Given, Item, Job
from foveate.journey.produce import ALIGNMENT_BYTES
from foveate.journey.room import take
from foveate.journey.tools import Tools
from foveate.media.embeddings import EmbeddingShape
from foveate.media.messages import EmbeddingsRead, JobFailed, ReadEmbeddings
from foveate.models.port import VisualEstimate

_ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


def judge_given(job: Job, tools: Tools) -> None:
    """Refuse embeddings where they are not accepted, before anything is read. Raises EmbeddingsRefused."""
    for part in job.request.images:
        if isinstance(part.ref, EmbedsRef):
            try:
                _accepted(job, tools)
            except EmbeddingsRefused as error:
                error.part, error.param = part.index, part.param
                raise


def _accepted(job: Job, tools: Tools) -> None:
    if not tools.limits.client_embeddings:
        raise EmbeddingsRefused
    if "embeddings" not in job.serving.engine.accepts:
        raise EmbeddingsRefused("This server's engine takes pictures, not embeddings of them.")
    job.serving.prompt_side.given_accepted()


def name_given(item: Item) -> None:
    """Give what was brought in a digest that no picture of the same bytes has."""
    assert item.blob is not None
    assert isinstance(item.part.ref, EmbedsRef)
    digest = blake3(f"embeddings {item.blob.digest} {item.part.ref.grid}".encode()).hexdigest()
    item.blob = Blob(item.blob.slot, digest)


async def look_at_given(item: Item, job: Job, tools: Tools) -> None:
    """Set ``item.given`` and ``item.estimate``. Raises EmbeddingsRefused, EmbeddingsInvalid, MediaCostly, QueueFull."""
    # An estimate goes on after a refusal; and another version of the model may answer than was asked first.
    _accepted(job, tools)
    found = await _read(item, job, tools, None)
    side = job.serving.prompt_side
    replacement, meta = side.given(found.rows, found.grid)
    item.given = Given(found.rows, replacement, meta)
    item.estimate = VisualEstimate(found.rows, found.rows, 0)
    item.probed_at = now()
    item.ledger.span(Span("media_fetch", item.started_at, item.probed_at))


async def embed_given(item: Item, job: Job, tools: Tools) -> None:
    """Set ``item.lease``. Raises MediaIdConflict, ArenaFull, MediaCostly, QueueFull."""
    assert item.blob is not None
    assert item.given is not None
    given, asked = item.given, now()
    item.ledger.span(Span("media_fetch", item.probed_at, asked))
    if item.part.uuid is not None:
        tools.aliases.bind(job.request.caller.tenant, item.part.uuid, Content(item.blob.digest))
    out = take(tools, given.rows * job.serving.engine.info.embedding_bytes_per_row + ALIGNMENT_BYTES)
    try:
        found = await _read(item, job, tools, out)
        if found.embeddings is None or found.rows != given.rows:
            raise Failed(detail="the same embeddings were read differently the second time")
    except BaseException:
        out.release()
        raise
    content = blake3(f"{item.blob.digest} {job.request.caller.tenant} {job.encoder_version}".encode()).hexdigest()
    entry = EncoderEntry(given.replacement, given.rows, given.meta, found.embeddings, {}, f"given:{content}")
    item.lease = LooseLease(entry, out)
    item.release_media()
    item.ready_at = now()
    item.ledger.span(Span("media_decode", asked, item.ready_at))
    item.ledger.ready(item.ready_at)


async def _read(item: Item, job: Job, tools: Tools, out: SlotHold | None) -> EmbeddingsRead:
    assert item.blob is not None
    assert item.hold is not None
    assert isinstance(item.part.ref, EmbedsRef)
    info = job.serving.engine.info
    width = info.embedding_bytes_per_row // (_ITEM_BYTES[info.embedding_dtype] * info.embedding_levels)
    shape = EmbeddingShape(width, info.embedding_levels, info.embedding_dtype, job.budget.max_visual_tokens)
    held = [item.hold.retain(), *([out.retain()] if out is not None else [])]

    def done() -> None:
        for hold in held:
            hold.release()

    reply = await job.serving.media.run(
        ReadEmbeddings(item.blob.slot, item.part.ref.grid, shape, None if out is None else out.slot),
        whom=job.request.caller.tenant,
        on_done=done,
        deadline=now() + tools.limits.item_seconds_max,
    )
    if isinstance(reply, JobFailed):
        raise reply.error.error()
    if not isinstance(reply, EmbeddingsRead):
        raise EmbeddingsInvalid(detail=f"a media worker answered {type(reply).__name__}")
    item.ledger.spent.media_cpu_ms += reply.cpu_ms
    return reply
