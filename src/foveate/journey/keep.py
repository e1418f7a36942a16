"""The encoder cache outlives its process: read back before the server is ready, written when it stops. Optional.

Both are bounded in time and bytes, and done by a thread in batches. A batch's slots belong to the thread until it is through, even when
nobody waits for it any more. What cannot be used is skipped, counted and told; it costs being made again and nothing else.

Does not cover: clients' names for pictures (``uuid``), which end with the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from foveate.caches.cache import heat
from foveate.caches.encoder import EncoderEntry
from foveate.caches.keep_directory import KeepDirectory
from foveate.caches.kept_file import Kept, KeptFault, KeptReader, KeptWriter
from foveate.caches.keys import EncoderKey
from foveate.caches.lease import Lease
from foveate.core.clock import now
from foveate.core.kept import SkipReason
from foveate.core.memory import Slot
from foveate.decisions.eviction import Held
from foveate.journey.file_thread import FileThread
from foveate.journey.restoring import Restoring, Unfit, look
from foveate.journey.tools import Tools
from foveate.observe.logging import get_logger
from foveate.runtime.arena import Arena

BATCH_BYTES: Final = 8 * 1024 * 1024
BATCH_ENTRIES: Final = 256
"""What the thread writes before the time is looked at again."""
WRITING_SHARE: Final = 0.8
"""Of the time at the stop: no batch is begun after it, so that the last one and the end of the file have the rest."""
FRAME_BYTES: Final = 4096
"""More than an entry's frame takes beside its prompt text."""

Entry = Held[EncoderKey, EncoderEntry]
log = get_logger(__name__)


async def restore(tools: Tools) -> None:
    """Read into the empty cache what was kept, the hottest first, if the operator wants it kept. It never fails."""
    if tools.keep is None:
        return
    begun = now()
    cache = tools.encoder_cache
    restoring = Restoring(tools.arena, cache.stats().capacity_bytes)
    try:
        await _read(restoring, tools.keep, _judge(tools), begun + tools.keep.seconds_max)
    except KeptFault as fault:
        restoring.skip(fault.reason)
    except TimeoutError:
        restoring.skip("time")
    except OSError as error:
        log.warning("the kept encoder cache cannot be read", reason=_words(error))
    finally:
        restoring.give(cache)
    stats, skipped = cache.stats(), restoring.skipped
    tools.metrics.count("foveate_restored_entries_total", amount=stats.entries)
    tools.metrics.count("foveate_restored_bytes_total", amount=stats.bytes)
    for reason, count in skipped.items():
        tools.metrics.count("foveate_restore_skipped_total", reason, amount=count)
    if skipped:
        log.warning("not all of the kept encoder cache is used", skipped=skipped, directory=str(tools.keep.path))
    if stats.entries:
        log.info("encoder cache restored", entries=stats.entries, bytes=stats.bytes, seconds=round(now() - begun, 3))


async def save(tools: Tools) -> None:
    """Write the hottest entries, as far as bytes and time allow. An empty cache leaves the old file. It never fails."""
    entries = tools.encoder_cache.entries()
    if tools.keep is None or not entries:
        return
    begun = now()
    try:
        async with FileThread(begun + tools.keep.seconds_max) as thread:
            thread.last(tools.keep.abandon)
            written = await _write(entries, tools, tools.keep, thread)
    except (OSError, TimeoutError) as error:
        log.warning("the encoder cache is not kept", reason=_words(error), directory=str(tools.keep.path))
        return
    log.info(
        "encoder cache kept",
        entries=written.entries,
        left_out=len(entries) - written.entries,
        bytes=written.bytes,
        seconds=round(now() - begun, 3),
    )


async def forget_kept(tools: Tools) -> None:
    """Remove the file: an operator dropped entries, and a crash must not bring them back."""
    if tools.keep is None:
        return
    try:
        await asyncio.to_thread(tools.keep.forget)
    except OSError as error:
        log.warning("the kept encoder cache cannot be removed, and a crash would bring it back", reason=_words(error))


def _judge(tools: Tools) -> Unfit:
    """Return what says why a key is of no use now."""
    serving = tools.roll_out.stable
    versions = serving.processor_version, serving.encoder_version
    apart = tools.limits.caches_per_tenant

    def unfit(key: EncoderKey) -> SkipReason | None:
        if (key.processor_version, key.encoder_version) != versions:
            return "version"
        return None if bool(key.scope) == apart else "scope"

    return unfit


async def _read(restoring: Restoring, keep: KeepDirectory, unfit: Unfit, until: float) -> None:
    async with FileThread(until) as thread:
        await thread.do(keep.abandon)
        fd = await thread.do(keep.open)
        if fd is None:
            return
        thread.last(partial(os.close, fd))
        reader = await thread.do(partial(KeptReader, fd, keep.made_by))
        while not reader.done:
            seen = await thread.do(partial(look, reader, unfit))
            batch = restoring.allocate(seen)
            await thread.do(partial(batch.load, reader), through=batch.through)
            if seen.fault is not None:
                raise seen.fault


async def _write(entries: Sequence[Entry], tools: Tools, keep: KeepDirectory, thread: FileThread) -> KeptWriter:
    last_call = now() + keep.seconds_max * WRITING_SHARE
    hottest = await thread.do(lambda: sorted(entries, key=heat, reverse=True))
    writer = await thread.do(partial(_begin, keep, entries))
    thread.last(writer.close)
    for batch in _batches(hottest):
        if now() > last_call:
            break
        # Leased, so that work which ends just now cannot put another picture's embeddings where these are read.
        leases = [(held.key, lease) for held in batch if (lease := tools.encoder_cache.peek(held.key)) is not None]
        found = [(key, lease.entry) for key, lease in leases]
        fitted = await thread.do(
            partial(_add, writer, found, tools.arena), through=partial(_release, [lease for _, lease in leases])
        )
        if not fitted:
            break
    if writer.entries:
        await thread.do(partial(_end, keep, writer))
    return writer


def _begin(keep: KeepDirectory, entries: Sequence[Entry]) -> KeptWriter:
    """Open the new file. The old one stays until that is whole, unless the two would take too much."""
    planned = sum(held.size + len(held.value.replacement.encode()) + FRAME_BYTES for held in entries)
    room = keep.bytes_max - keep.bytes
    if planned > room:
        keep.forget()
        room = keep.bytes_max
    return KeptWriter(keep.begin(), room, keep.made_by)


def _end(keep: KeepDirectory, writer: KeptWriter) -> None:
    writer.end()
    keep.commit()


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for held in entries:
        batch.append(held)
        size += held.size
        if size >= BATCH_BYTES or len(batch) >= BATCH_ENTRIES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _add(writer: KeptWriter, found: Sequence[tuple[EncoderKey, EncoderEntry]], arena: Arena) -> bool:
    for key, entry in found:
        bundle = entry.embeddings
        kept = Kept(key, entry.replacement, entry.rows, entry.meta, bundle.tensors, bundle.used, dict(entry.cost_ms))
        if not writer.add(kept, arena.view(Slot(bundle.slot.offset, bundle.used))):
            return False
    writer.sync()
    return True


def _release(leases: Sequence[Lease[EncoderEntry]]) -> None:
    for lease in leases:
        lease.release()


def _words(error: OSError | TimeoutError) -> str:
    return "it took too long" if isinstance(error, TimeoutError) else os.strerror(error.errno or 0)
