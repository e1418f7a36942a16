"""Make a new version's embeddings of the hottest contents ahead, so that its first requests do not pay for what the old one's no longer do.

They can only be made of what is held: of inputs in the processor cache, if both versions have the same processor. Encoded bytes are held
for no longer than the requests that bring them (the media cache, where it is on, keeps them by URL, not by content), so of other contents
nothing is held that a new processor could read.
"""

from __future__ import annotations

import asyncio
import heapq

from foveate.caches.cache import heat
from foveate.caches.encoder import EncoderEntry
from foveate.caches.keys import EncoderKey
from foveate.caches.processor import ProcessorEntry
from foveate.core.clock import now
from foveate.core.errors import FoveateError
from foveate.decisions.eviction import Held
from foveate.journey.compare import key_for
from foveate.journey.holds import Lease
from foveate.journey.produce import produce
from foveate.journey.source import Source
from foveate.journey.tools import Tools
from foveate.journey.trial import Trial
from foveate.observe.logging import get_logger

log = get_logger(__name__)


async def warm_ahead(trial: Trial, tools: Tools, contents_max: int) -> None:
    """Warm the encoder cache with at most ``contents_max`` of the contents that meet the new version, one after the other.

    Ends early when a picture cannot be made: then there is something else to look after.
    """
    for key in await asyncio.to_thread(_hottest, tools.encoder_cache.entries(), trial, contents_max):
        wanted = key_for(trial.new, key)
        if wanted in tools.encoder_cache:
            continue
        inputs = tools.processor_cache.peek(wanted.processor_key)
        if inputs is None:
            trial.not_held += 1
        elif not await _make(wanted, inputs, trial, tools):
            return


async def _make(key: EncoderKey, inputs: Lease[ProcessorEntry], trial: Trial, tools: Tools) -> bool:
    source = Source(inputs, "", trial.new)
    leave = trial.new.enter()

    def ended() -> None:
        source.release()
        leave()

    try:
        made, _ = await tools.flights.share(
            key, start=lambda: produce(key, source, tools, now()), lease=lambda made: made.again(), ended=ended
        )
    except FoveateError as error:
        log.warning("warming the new version's encoder cache ended early", error=error.code, warmed=trial.warmed)
        return False
    made.release()
    trial.warmed += 1
    return True


def _hottest(entries: list[Held[EncoderKey, EncoderEntry]], trial: Trial, contents_max: int) -> list[EncoderKey]:
    """Choose among the old version's entries. To be called in a thread: there may be a hundred thousand."""
    versions = trial.old.encoder_version, trial.old.processor_version
    chosen = (held for held in entries if held.key.versions == versions and trial.role_of(held.key.digest) == "canary")
    return [held.key for held in heapq.nlargest(contents_max, chosen, heat)]
