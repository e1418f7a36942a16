"""Take arena memory for work under way; what the caches hold gives way to it."""

from __future__ import annotations

from foveate.core.errors import ArenaFull
from foveate.journey.holds import SlotHold
from foveate.journey.tools import Tools


def take(tools: Tools, size: int) -> SlotHold:
    """Return a slot of ``size`` bytes. What is cheaper to make again, for its bytes, goes first: model inputs, then embeddings; encoded
    media are small, and to fetch them again takes their origin's time. Raises ArenaFull.
    """
    for shrink in (tools.processor_cache.shrink, tools.encoder_cache.shrink, tools.media_cache.shrink):
        try:
            return SlotHold(tools.arena, tools.arena.allocate(size))
        except ArenaFull:
            shrink(size)
    return SlotHold(tools.arena, tools.arena.allocate(size))
