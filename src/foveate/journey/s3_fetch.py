"""Step 3: from a reference to bytes in the arena with their content hash: over HTTP, from a data URL, or from an unpacked body.

Bytes are judged as they become known: those of one medium here, while they stream; those of all together when each has come
(:func:`foveate.journey.s5_price.tally`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from blake3 import blake3

from foveate.caches.media import MediaEntry, Source
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
from foveate.core.media import Blob, DataRef, EmbedsRef, InlineRef, NamedRef, brought
from foveate.core.stages import Span
from foveate.decisions.budget import judge_item_bytes
from foveate.journey.arena_sink import ArenaSink
from foveate.journey.given import name_given
from foveate.journey.holds import Lease, SlotHold
from foveate.journey.in_flight import NoRoom, Transfer
from foveate.journey.job import Got, Item, Job, Wanted
from foveate.journey.recall import find
from foveate.journey.room import take
from foveate.journey.tools import Tools
from foveate.media.data_url import decode_data_url
from foveate.media.fetch import Fetched
from foveate.media.probe import is_media
from foveate.media.shelf import Shelf
from foveate.observe.labels import FetchOutcome
from foveate.observe.records import Arrival
from foveate.runtime.arena import aligned

_SOURCES: Final[dict[Source, FetchOutcome | None]] = {
    "origin": "fetched",
    "revalidated": "not_modified",
    "cache": None,
}
"""How a transfer that brought something counts; what was found fresh was none."""


async def fetch(item: Item, job: Job, tools: Tools) -> None:
    """Bring the bytes in, or find what was named instead.

    Raises MediaNotHeld, DataUrlInvalid, MediaTooLarge, FetchRejected, FetchFailed, FetchTimeout, ArenaFull, HouseFull.
    """
    reference = brought(item.part.ref)
    try:
        if isinstance(reference, InlineRef):
            _take_inline(item, job, reference)
        elif isinstance(reference, DataRef):
            _take_data_url(item, job, tools, reference)
        elif isinstance(reference, NamedRef):
            find(item, reference.name, job, tools)
        else:
            await _fetch_url(item, job, tools)
    except FoveateError as error:
        item.ledger.span(Span("media_fetch", item.started_at, now()))
        _note_excess(error, job)
        raise
    finally:
        job.ledger.counts.fetch_seconds = now() - job.fetching_since
    assert item.blob is not None
    if isinstance(item.part.ref, EmbedsRef):
        name_given(item)
    _share_bytes(item, job)
    counts = job.ledger.counts
    counts.largest_item_bytes = max(counts.largest_item_bytes, item.blob.size)


def _note_excess(error: FoveateError, job: Job) -> None:
    """Count what a medium was refused for: an operator sets limits by what was asked for, not by what passed them."""
    if error.actual is None:
        return
    counts = job.ledger.counts
    if error.limit_name == "max_item_bytes":
        counts.largest_item_bytes = max(counts.largest_item_bytes, int(error.actual))
    elif error.limit_name == "max_redirects":
        counts.redirects = max(counts.redirects, int(error.actual))


def _note_arrival(item: Item, job: Job, transfer: Transfer, *, whole: bool) -> None:
    """Note how far a transfer came, above all where it failed: there is nothing else to tell it by."""
    progress, counts = transfer.progress, job.ledger.counts
    item.ledger.arrived(Arrival(progress.redirects, progress.retries, None if whole else transfer.came))
    counts.redirects = max(counts.redirects, progress.redirects)


def _take_inline(item: Item, job: Job, reference: InlineRef) -> None:
    assert job.unpacked is not None
    assert job.unpacked.hold is not None
    found = job.unpacked.blobs[reference.index]
    if isinstance(found, ErrorRecord):
        raise found.error()
    _judge_size(found.size, job)
    item.hold = job.unpacked.hold.retain()
    item.blob = found


def _take_data_url(item: Item, job: Job, tools: Tools, reference: DataRef) -> None:
    data = decode_data_url(reference.url)
    _judge_size(len(data), job)
    item.hold = take(tools, len(data))
    tools.arena.view(item.hold.slot)[:] = data
    item.blob = Blob(item.hold.slot, blake3(data).hexdigest())


def _judge_size(size: int, job: Job) -> None:
    counts = job.ledger.counts
    counts.largest_item_bytes = max(counts.largest_item_bytes, size)
    judge_item_bytes(job.budget, size)


def _share_bytes(item: Item, job: Job) -> None:
    """Hold equal contents of one request once, as where repeats do not count they are also counted once."""
    assert item.blob is not None
    first = job.contents.setdefault(item.blob.digest, item)
    if first.recalled is not None and item.hold is not None:
        # What was only named has no bytes to count; these have.
        first = job.contents[item.blob.digest] = item
    item.repeats = first is not item
    if item.repeats and item.hold is not None and first.hold is not None:
        item.hold.release()
        item.hold, item.blob = first.hold.retain(), first.blob


async def _fetch_url(item: Item, job: Job, tools: Tools) -> None:
    url = item.url
    assert url is not None
    item.ledger.origin(url.host or url.scheme)
    wanted = item.wanted = Wanted(
        url, job.rules.policy, job.budget.max_item_bytes, job.budget.max_redirects, scope=job.scope
    )
    seconds_max = job.budget.max_fetch_seconds
    refusals: list[FoveateError] = []

    def refuse(error: FoveateError) -> None:
        if not refusals and not scope.expired():
            refusals.append(error)
            scope.reschedule(asyncio.get_running_loop().time())

    waiting = job.charged.wait(wanted, refuse)
    got: Got | None = None
    try:
        # The transfer may serve others, whose tiers give it more time, so it is not ended here; this request only waits no longer.
        async with asyncio.timeout(max(job.fetching_since + seconds_max - now(), 0)) as scope:
            with waiting:
                got, shared = await tools.fetches.share(
                    wanted,
                    start=lambda: _transfer(wanted, job.request.caller.tenant, tools),
                    lease=lambda got: got.again(),
                    anew=_out_of_time,
                )
    except TimeoutError:
        if refusals:
            raise refusals[0] from None
        raise FetchTimeout(
            f"Fetching all media of the request took longer than the {seconds_max:g} seconds allowed.",
            limit_name="max_fetch_seconds",
            limit=seconds_max,
            actual=round(now() - job.fetching_since, 3),
        ) from None
    except NoRoom as stopped:
        others = {other.wanted for other in job.items if other.wanted is not None and other.blob is None} - {wanted}
        raise job.charged.no_room(stopped.size + tools.in_flight.arriving(others)) from stopped
    finally:
        if waiting.transfer is not None:
            _note_arrival(item, job, waiting.transfer, whole=got is not None)
    assert got is not None
    item.hold, item.source = got.hold, got.source
    item.blob = Blob(got.hold.slot, got.digest)
    # At once, or what is here would be nobody's while its header is read.
    job.charged.top_up("bytes", job.bytes_here)
    counts = job.ledger.counts
    counts.redirects = max(counts.redirects, got.redirects)
    if not shared and got.source != "cache":
        counts.fetches += 1
    if not shared and got.source == "origin":
        item.ledger.spent.fetch_bytes += item.blob.size
    if got.source != "origin":
        item.ledger.source = got.source
    if shared and url.scheme != "file" and tools.media_cache.on:
        tools.media_cache.followed(got.source)


async def _transfer(wanted: Wanted, tenant: str, tools: Tools) -> Got:
    """Fetch once for everyone who waits for this very URL, query and all; ``fetch.total_seconds`` is its only deadline. It takes a place
    of the ``tenant`` who asked first.
    """
    outcome: FetchOutcome | None = "cancelled"
    shelf = Shelf(tools.media_cache, wanted.scope, shared=not tools.limits.caches_per_tenant)
    counted = tools.in_flight.transfer(wanted)
    try:
        with (
            counted,
            ArenaSink(tools.arena, wanted.bytes_max, take=partial(take, tools), grow=counted.grow) as sink,
        ):
            fetched = await tools.fetcher.fetch(
                wanted.url,
                sink,
                policy=wanted.policy,
                redirects_max=wanted.redirects_max,
                tenant=tenant,
                shelf=shelf,
                progress=counted.progress,
            )
            got = _received(fetched, sink, tools)
        outcome = _SOURCES[got.source]
    except FoveateError as error:
        outcome = _outcome(error)
        raise
    except NoRoom:
        outcome = "failed"
        raise
    finally:
        if outcome is not None:
            tools.metrics.count("foveate_fetches_total", outcome)
        tools.metrics.count("foveate_fetch_retries_total", amount=counted.progress.retries)
    return got


def _received(fetched: Fetched, sink: ArenaSink, tools: Tools) -> Got:
    """Return what a transfer brought, or found in the media cache; keep it there if it may be kept, and is a picture or video."""
    if fetched.found is not None:
        return _leased(fetched, fetched.found.lease, "revalidated" if fetched.found.asked else "cache", tools)
    hold, offer, cache = sink.take(), fetched.offer, tools.media_cache
    if offer is not None and not is_media(tools.arena.view(hold.slot)):
        cache.refused("not_media")
    elif offer is not None:
        kept = cache.keep(offer.key, offer.entry(hold.slot, fetched.digest, now()), aligned(hold.slot.size))
        if kept is not None:
            hold.give_away()
            return _leased(fetched, kept, "origin", tools)
    return Got(hold, fetched.digest, fetched.redirects)


def _leased(fetched: Fetched, lease: Lease[MediaEntry], source: Source, tools: Tools) -> Got:
    hold = SlotHold(tools.arena, lease.entry.slot, give_back=lease.release)
    return Got(hold, fetched.digest, fetched.redirects, source)


def _out_of_time(error: FoveateError) -> bool:
    """Whether a transfer used up its whole time, much of it perhaps before others joined it. The limits of its parts judge the origin."""
    return isinstance(error, FetchTimeout) and error.limit_name == "fetch.total_seconds"


def _outcome(error: FoveateError) -> FetchOutcome:
    kinds: tuple[tuple[type[FoveateError], FetchOutcome], ...] = (
        (UrlInvalid, "refused"),
        (UrlRefused, "refused"),
        (FetchRejected, "rejected"),
        (MediaTooLarge, "too_large"),
        (FetchTimeout, "timeout"),
    )
    return next((outcome for kind, outcome in kinds if isinstance(error, kind)), "failed")
