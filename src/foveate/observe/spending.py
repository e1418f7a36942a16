"""What a request, or one of its items, took of what an operator pays for, and what caches spared it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from foveate.core.stages import Span, Stage


class Spent(msgspec.Struct):
    """Quantities, not money (:mod:`foveate.observe.cost` has the prices).

    ``fetch_bytes`` came over the network for this request, not for another that it joined; ``media_cpu_ms`` and ``processor_cpu_ms`` are
    processor time of media workers, for media decode (video and large bodies included) and for the picture processor; ``encoder_ms`` is its
    share of the encoder's batches; ``engine_token_ms`` its share of the language model's steps, each split evenly over its tokens;
    ``cache_saved_ms`` is the work that caches, or others' work in flight, spared it, as that work had taken when it was done.

    What failed or was cancelled midway is not counted.
    """

    fetch_bytes: int = 0
    media_cpu_ms: float = 0.0
    processor_cpu_ms: float = 0.0
    encoder_ms: float = 0.0
    engine_token_ms: float = 0.0
    cache_saved_ms: float = 0.0

    def add(self, other: Spent) -> None:
        """Add another's quantities."""
        # Written out: names that are looked up cost as much again as all else that a request's end adds up. A test counts the fields.
        self.fetch_bytes += other.fetch_bytes
        self.media_cpu_ms += other.media_cpu_ms
        self.processor_cpu_ms += other.processor_cpu_ms
        self.encoder_ms += other.encoder_ms
        self.engine_token_ms += other.engine_token_ms
        self.cache_saved_ms += other.cache_saved_ms

    def charge(self, spans: Iterable[Span]) -> None:
        """Add what work done for this request cost, as its spans say."""
        for span in spans:
            if span.stage == "media_decode":
                self.media_cpu_ms += span.cost_ms
            elif span.stage == "mm_processor":
                self.processor_cpu_ms += span.cost_ms
            elif span.stage == "vision_encode":
                self.encoder_ms += span.cost_ms

    def saved(self, cost_ms: Mapping[Stage, float], *stages: Stage) -> None:
        """Add work that was spared: what the stages (all, if none is named) had cost when it was done."""
        self.cache_saved_ms += sum(ms for stage, ms in cost_ms.items() if not stages or stage in stages)


QUANTITIES: Final[tuple[str, ...]] = Spent.__struct_fields__


def total(parts: Iterable[Spent]) -> Spent:
    """Return the sum."""
    found = Spent()
    for part in parts:
        found.add(part)
    return found
