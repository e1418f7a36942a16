"""Media that a request names by its ``uuid`` instead of sending it.

A name only finds the content's key. What answers for it is an entry that a cache still holds, made with the very options that this request
needs; it is leased at look-up, so that it cannot be evicted before it is used. Where there is none, the client is told to send the media
(``media_not_held``), whatever the reason: a name that was never bound, or was forgotten, cannot be told from media that is no longer held.

A video is held when all of its frames are that were there when it was sent, by the same choice of frames.
"""

from __future__ import annotations

from typing import Final

from foveate.core.errors import MediaNotHeld
from foveate.core.media import Blob
from foveate.core.memory import Slot
from foveate.core.request import VideoPart
from foveate.journey.job import Item, Job
from foveate.journey.s6_embed import cache_key
from foveate.journey.s6_frames import encoder_keys, named_frames
from foveate.journey.tools import Tools

_NO_BYTES: Final = Slot(0, 0)


def find(item: Item, name: str, job: Job, tools: Tools) -> None:
    """Set what the name means as the item's content, of no bytes. Raises MediaNotHeld."""
    content = tools.aliases.find(job.request.caller.tenant, name)
    if content is None or (content.film if isinstance(item.part, VideoPart) else content.header) is None:
        raise _not_held(tools)
    item.recalled = content
    item.blob = Blob(_NO_BYTES, item.recalled.digest)


async def recall(item: Item, job: Job, tools: Tools) -> None:
    """Lease what the caches hold of a named medium: its embeddings, else its inputs. Raises MediaNotHeld.

    To be taken when all is priced, since that may change the options, and before anything is made, since that may evict.
    """
    if item.recalled is None:
        return
    item.frames = named_frames(item)
    for each in item.frames or [item]:
        key = cache_key(each, job, tools)
        each.key = key
        if not job.serving.takes_pixels:
            each.lease = tools.encoder_cache.get(key)
        if each.lease is None:
            each.inputs = tools.processor_cache.get(key.processor_key)
        if each.lease is None and each.inputs is None:
            raise _not_held(tools)
    tools.metrics.count("foveate_alias_uses_total", "held")


async def judge_held(item: Item, job: Job, tools: Tools) -> None:
    """Tell whether :func:`recall` would succeed now; touches and counts nothing. Raises MediaNotHeld."""
    if item.recalled is None or job.request.document is not None:
        return
    for key in encoder_keys(item, job, tools):
        if key not in tools.encoder_cache and key.processor_key not in tools.processor_cache:
            raise MediaNotHeld


def _not_held(tools: Tools) -> MediaNotHeld:
    tools.metrics.count("foveate_alias_uses_total", "not_held")
    return MediaNotHeld()
