"""The processor cache: a picture's model inputs by content, processor version and options.

A hit saves media decode and processor. Knows nothing of the encoder cache; the journey says which entries have become second-rate
(:meth:`ProcessorCache.demote`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from foveate.caches.cache import Cache
from foveate.caches.keys import ProcessorKey
from foveate.core.media import PreparedImage
from foveate.core.memory import Slot
from foveate.core.stages import Stage


class ProcessorEntry(msgspec.Struct, frozen=True):
    """A picture's model inputs, and what making them cost, by stage, in milliseconds (media_decode, mm_processor).

    Where the engine takes pixels they are those, resized; the processor version in the key is another then.
    """

    prepared: PreparedImage
    cost_ms: Mapping[Stage, float]

    @property
    def replacement(self) -> str:
        """The text that stands for the picture in the prompt."""
        return self.prepared.replacement

    @property
    def rows(self) -> int:
        """The embedding rows that it becomes."""
        return self.prepared.rows

    @property
    def slot(self) -> Slot:
        """Where the model inputs lie."""
        return self.prepared.inputs.slot


class ProcessorCache(Cache[ProcessorKey, ProcessorEntry]):
    """Model inputs."""

    def demote(self, key: ProcessorKey) -> None:
        """Evict this entry before others: its embeddings are cached too. A later hit takes this back."""
        self._holdings.demote(key)
