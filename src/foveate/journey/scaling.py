"""Look at the encode workers now and then, and have more or fewer of them (:mod:`foveate.decisions.scaling` decides)."""

from __future__ import annotations

from foveate.decisions.scaling import ScaleState, ScaleTerms, ScaleView, scale
from foveate.encoders.seat import EncoderTotals

LOOK_SECONDS = 0.5
BUSY_SECONDS = 10.0
"""Over about how long the share of busy workers is averaged."""


class Scaling:
    """What was seen at the last look, and what follows from it."""

    def __init__(self, terms: ScaleTerms) -> None:
        self.terms = terms
        self._state = ScaleState()
        self._before: tuple[float, EncoderTotals] | None = None
        self._busy = 0.0

    def look(self, workers: int, totals: EncoderTotals, now: float) -> int:
        """Return how many workers there are to be; ``totals`` are those of this moment."""
        before, self._before = self._before, (now, totals)
        if before is None or now <= before[0]:
            return workers
        moment, then = before
        given = totals.given - then.given
        waited = (totals.waited_seconds - then.waited_seconds) / given if given else totals.oldest_seconds
        share = min(1.0, (now - moment) / BUSY_SECONDS)
        self._busy += share * ((totals.busy_seconds - then.busy_seconds) / (now - moment) - self._busy)
        number, self._state = scale(ScaleView(workers, waited, self._busy), self._state, now, self.terms)
        return number
