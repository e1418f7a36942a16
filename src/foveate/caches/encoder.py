"""The encoder cache: a picture's embeddings by content, versions and options.

A hit saves media decode, processor and vision encode. Knows nothing of the processor cache.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from foveate.caches.cache import Cache
from foveate.caches.keys import EncoderKey
from foveate.core.memory import Slot, TensorBundle
from foveate.core.stages import Stage


class EncoderEntry(msgspec.Struct, frozen=True):
    """A picture's embeddings and all that prompt and prefill need beside them, so that a hit needs nothing else.

    ``replacement``, ``rows`` and ``meta`` are those of :class:`foveate.core.media.PreparedImage`, ``embeddings`` those of
    :class:`foveate.core.media.EncodedImage`; ``cost_ms`` is what making them cost, by stage, in milliseconds; ``content`` is the key's
    name, by which the engine knows embeddings again.
    """

    replacement: str
    rows: int
    meta: dict[str, list[int]]
    embeddings: TensorBundle
    cost_ms: Mapping[Stage, float]
    content: str

    @property
    def slot(self) -> Slot:
        """Where the embeddings lie."""
        return self.embeddings.slot


class EncoderCache(Cache[EncoderKey, EncoderEntry]):
    """Embeddings."""
