"""Where the making of embeddings starts from."""

from __future__ import annotations

from dataclasses import dataclass

from foveate.caches.processor import ProcessorEntry
from foveate.core.media import Blob, ImageHeader
from foveate.journey.holds import Lease, SlotHold
from foveate.journey.serving import Serving
from foveate.models.port import VisualEstimate


@dataclass(frozen=True)
class Encoded:
    """A picture's encoded bytes with a hold of one's own, what their header said, and what the picture costs."""

    blob: Blob
    hold: SlotHold
    header: ImageHeader
    estimate: VisualEstimate

    def again(self) -> Encoded:
        """Return the same with a further hold."""
        return Encoded(self.blob, self.hold.retain(), self.header, self.estimate)

    def release(self) -> None:
        """Give the hold back."""
        self.hold.release()


@dataclass(frozen=True)
class Source:
    """Encoded bytes, or a lease of one's own on inputs that a cache held. ``whom``: the tenant that it is done for, ``request`` the first
    of its requests that asked; ``serving``: the version that does it. ``cached`` is whether the caches are asked and offered what is
    made: not where it is only to be looked at."""

    start: Encoded | Lease[ProcessorEntry]
    whom: str
    serving: Serving
    cached: bool = True
    request: str = ""

    def release(self) -> None:
        """Give back what it starts from."""
        self.start.release()
