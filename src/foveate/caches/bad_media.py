"""Contents that a media worker could not decode a moment ago: asked for again, they are refused at once, without another job.

A client that retries a damaged picture, or many that send the same one, cost one decode every few seconds. Only what follows from the
content and how it was asked for is kept; time-outs, memory and full queues say nothing of the next attempt. Bounded in number and time.
Lives on the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from foveate.core.errors import ErrorRecord, MediaUndecodable

CONTENTS_MAX: Final = 4096
"""About 4 MB. With more than this many different ones in a few seconds, the oldest are decoded again."""


class BadMedia:
    """Refusals by key, for ``seconds``; 0 keeps none. A key holds the content's hash and whatever else the refusal depends on."""

    def __init__(self, seconds: float, *, contents_max: int = CONTENTS_MAX) -> None:
        self.refusals = 0
        """How often one was found, since the start."""
        self._seconds = seconds
        self._contents_max = contents_max
        self._kept: OrderedDict[Hashable, tuple[float, ErrorRecord]] = OrderedDict()

    def __len__(self) -> int:
        """Refusals kept, those included that are over but not yet cleared away."""
        return len(self._kept)

    def find(self, key: Hashable, at: float) -> ErrorRecord | None:
        """Return how this was refused, if it was within the last seconds (``at``: monotonic seconds), and count that."""
        self._forget(at)
        found = self._kept.get(key)
        if found is None:
            return None
        self.refusals += 1
        return found[1]

    def note(self, key: Hashable, error: ErrorRecord, at: float) -> None:
        """Keep a refusal, if it is one that will be the same again."""
        if error.code != MediaUndecodable.code or not self._seconds:
            return
        self._kept[key] = (at + self._seconds, error)
        self._kept.move_to_end(key)
        if len(self._kept) > self._contents_max:
            self._kept.popitem(last=False)

    def _forget(self, at: float) -> None:
        """Clear away what is over. All are kept equally long, so the oldest come first."""
        while self._kept:
            key, (until, _) = next(iter(self._kept.items()))
            if until > at:
                return
            del self._kept[key]
