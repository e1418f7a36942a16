"""Step 3: from a reference to bytes in the arena with their content hash: over HTTP, from a data URL, or from an unpacked body."""

from __future__ import annotations

from functools import partial

from blake3 import blake3

from foveate.core.clock import now
from foveate.core.errors import (
    ErrorRecord,
    FetchRejected,
    FetchTimeout,
    FoveateError,
    MediaTooLarge,
    UrlInvalid,
    UrlRefused,
)
from foveate.core.media import Blob, DataRef, InlineRef
from foveate.core.stages import Span
from foveate.journey.arena_sink import ArenaSink
from foveate.journey.job import Got, Item, Job, Wanted
from foveate.journey.room import take
from foveate.journey.tools import Tools
from foveate.media.data_url import decode_data_url
from foveate.observe.table import FetchOutcome


async def fetch(item: Item, job: Job, tools: Tools) -> None:
    """Bring the bytes in. Raises DataUrlInvalid, MediaTooLarge, FetchRejected, FetchFailed, FetchTimeout, ArenaFull, MediaIdConflict."""
    reference = item.part.ref
    try:
        if isinstance(reference, InlineRef):
            _take_inline(item, job, tools, reference)
        elif isinstance(reference, DataRef):
            _take_data_url(item, job, tools, reference)
        else:
            await _fetch_url(item, job, tools)
    except FoveateError:
        item.ledger.span(Span("media_fetch", item.started_at, now()))
        raise
    assert item.blob is not None
    if item.part.uuid is not None:
        tools.aliases.bind(item.part.uuid, item.blob.digest)
    job.ledger.counts.media_bytes += item.blob.size


def _take_inline(item: Item, job: Job, tools: Tools, reference: InlineRef) -> None:
    assert job.unpacked is not None
    assert job.unpacked.hold is not None
    found = job.unpacked.blobs[reference.index]
    if isinstance(found, ErrorRecord):
        raise found.error()
    _check_size(found.size, job.request.caller.budget.max_item_bytes)
    item.hold = job.unpacked.hold.retain()
    item.blob = found


def _take_data_url(item: Item, job: Job, tools: Tools, reference: DataRef) -> None:
    data = decode_data_url(reference.url)
    _check_size(len(data), job.request.caller.budget.max_item_bytes)
    item.hold = take(tools, len(data))
    tools.arena.view(item.hold.slot)[:] = data
    item.blob = Blob(item.hold.slot, blake3(data).hexdigest())


async def _fetch_url(item: Item, job: Job, tools: Tools) -> None:
    url = item.url
    assert url is not None
    item.ledger.origin(url.host)
    budget = job.request.caller.budget
    wanted = Wanted(url, job.rules.policy, budget.max_item_bytes, budget.max_redirects)
    got, shared = await tools.fetches.share(
        wanted, start=lambda: _transfer(wanted, tools), lease=lambda got: got.again()
    )
    item.hold = got.hold
    item.blob = Blob(got.hold.slot, got.digest)
    if not shared:
        job.ledger.counts.fetches += 1


async def _transfer(wanted: Wanted, tools: Tools) -> Got:
    """Fetch once for everyone who waits for this very URL, query and all; with a deadline of its own."""
    outcome: FetchOutcome = "cancelled"
    try:
        with ArenaSink(tools.arena, wanted.bytes_max, take=partial(take, tools)) as sink:
            fetched = await tools.fetcher.fetch(
                wanted.url,
                sink,
                policy=wanted.policy,
                redirects_max=wanted.redirects_max,
                deadline=now() + tools.limits.fetch_seconds_max,
            )
            got = Got(sink.take(), fetched.digest)
        outcome = "fetched"
    except FoveateError as error:
        outcome = _outcome(error)
        raise
    finally:
        tools.metrics.count("foveate_fetches_total", outcome)
    return got


def _outcome(error: FoveateError) -> FetchOutcome:
    kinds: tuple[tuple[type[FoveateError], FetchOutcome], ...] = (
        (UrlInvalid, "refused"),
        (UrlRefused, "refused"),
        (FetchRejected, "rejected"),
        (MediaTooLarge, "too_large"),
        (FetchTimeout, "timeout"),
    )
    return next((outcome for kind, outcome in kinds if isinstance(error, kind)), "failed")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise MediaTooLarge(
            f"The picture has {size} bytes; at most {limit} are allowed.",
            limit=limit,
            actual=size,
            limit_name="max_item_bytes",
        )
