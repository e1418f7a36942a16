"""What a family's sizing also knows where its pictures go to an engine as pixels (:mod:`foveate.models.pixels`)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from foveate.core.errors import StartupError
from foveate.core.media import ImageOptions
from foveate.models.families import Family
from foveate.models.sizing import CHANNELS, Sizing


@runtime_checkable
class Resizing(Protocol):
    """What a :class:`foveate.models.sizing.Sizing` also knows where pictures go to an engine as pixels."""

    def steps(self, width: int, height: int, options: ImageOptions) -> tuple[tuple[int, int], ...]:
        """Return the sizes (height, width) that a picture is brought to, one after the other, after which the processor resizes nothing.

        Empty where it would not leave such a picture as it is.
        """
        ...

    def replacement(self, width: int, height: int, options: ImageOptions) -> str:
        """Return the text that stands for the picture in the prompt."""
        ...

    def longest_edge(self, options: ImageOptions) -> int:
        """Return what the processor must be told of the picture's longest edge, resized or not; 0: nothing."""
        ...


def resizing(family: Family, sizing: Sizing) -> Resizing:
    """Return ``sizing`` as what resizes. Raises StartupError for a family whose pictures go in as embeddings only."""
    if not isinstance(sizing, Resizing):
        raise StartupError(f"Pictures of {family.title} cannot be handed over as pixels.")
    return sizing


def pixel_bytes(sizing: Resizing, width: int, height: int, options: ImageOptions) -> int:
    """Return the bytes of a picture of ``width`` x ``height`` when it is handed over."""
    high, wide = (*((height, width),), *sizing.steps(width, height, options))[-1]
    return CHANNELS * high * wide
