"""Have the other version of a trial encode a picture too, and compare the embeddings.

What is made for this is in no cache and in no figure of one, and is gone when it was looked at.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

from foveate.caches.encoder import EncoderEntry
from foveate.caches.keys import EncoderKey
from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EngineFailed, FoveateError, Overloaded
from foveate.journey.embedding_difference import Difference, difference
from foveate.journey.holds import Lease
from foveate.journey.produce import produce
from foveate.journey.serving import Serving
from foveate.journey.tools import Tools
from foveate.journey.trial import Sample, Trial
from foveate.runtime.tensors import read_bundle


async def compare(sample: Sample, trial: Trial, tools: Tools) -> None:
    """Compare, note what was found in ``trial``, and give the sample back. Raises nothing but cancellation."""
    serving = sample.source.serving
    leave = serving.enter()
    try:
        other = await _embeddings(sample, serving, tools)
        try:
            trial.note(await _difference(sample, other.entry, tools))
        finally:
            other.release()
    except (Overloaded, DeadlineExceeded, EngineFailed):
        # Of a process that died, the trial hears elsewhere.
        trial.skip()
    except FoveateError:
        # What the old version fails on says nothing against the new one.
        if sample.by_new:
            trial.skip()
        else:
            trial.failed()
    finally:
        sample.release()
        leave()


def key_for(serving: Serving, key: EncoderKey) -> EncoderKey:
    """Return the key of the same picture's embeddings by another version."""
    options = serving.prompt_side.options(key.options)
    return EncoderKey(key.digest, serving.processor_version, options, serving.encoder_version, key.scope)


async def _embeddings(sample: Sample, serving: Serving, tools: Tools) -> Lease[EncoderEntry]:
    key = key_for(serving, sample.key)
    held = tools.encoder_cache.peek(key)
    if held is not None:
        return held
    made = await produce(key, sample.source, tools, now())
    assert isinstance(made.lease.entry, EncoderEntry), "versions whose engine takes pixels are not compared"
    return cast(Lease[EncoderEntry], made.lease)


async def _difference(sample: Sample, other: EncoderEntry, tools: Tools) -> Difference:
    old, new = (other, sample.lease.entry) if sample.by_new else (sample.lease.entry, other)
    arena = tools.arena
    views = [read_bundle(arena.view(entry.slot), entry.embeddings) for entry in (old, new)]
    looking = asyncio.ensure_future(asyncio.to_thread(difference, *views))
    try:
        return await asyncio.shield(looking)
    finally:
        # Cancelled, it still reads both: they are given back when it is through, which is milliseconds away.
        while not looking.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((looking,))
