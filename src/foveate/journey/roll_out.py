"""Which versions of the model there are: the one that serves, at most one on trial beside it, and those that only finish what they began.

A request begins with the version that serves and may be given to the one on trial when its contents are known
(:mod:`foveate.journey.choose`); from then on nothing moves it. Which of them there are changes in one step, between two requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from foveate.journey.serving import Serving
from foveate.journey.trial import Trial


class RollOut:
    """Holds them. ``retiring`` take no new requests."""

    def __init__(self, stable: Serving) -> None:
        self.stable = stable
        self.trial: Trial | None = None
        self.retiring: list[Serving] = []
        self.loading = False
        """Whether a version is being loaded, in the topology that there was when that began."""
        self.topology_changes: set[asyncio.Task[None]] = set()
        """Those under way."""
        self._past_media_restarts = 0
        self._past_engine_restarts: Counter[str] = Counter()
        self._past_local_pictures = 0

    @property
    def all(self) -> list[Serving]:
        """Every version that has processes."""
        return [self.stable, *([self.trial.new] if self.trial is not None else []), *self.retiring]

    def encode_workers(self) -> int:
        """Return how many encode workers a version is to have."""
        pool = self.stable.encoders
        return 0 if pool is None else pool.wanted

    @property
    def local_pictures(self) -> int:
        """Pictures that engines' processes encoded because no worker could, those of versions that are gone included."""
        pools = [serving.encoders for serving in self.all if serving.encoders is not None]
        return self._past_local_pictures + sum(pool.local_pictures for pool in pools)

    @property
    def media_restarts(self) -> int:
        """Media workers replaced, those of versions that are gone included."""
        return self._past_media_restarts + sum(serving.media.restarts for serving in self.all)

    @property
    def engine_restarts(self) -> dict[str, int]:
        """How often each engine process was replaced, those of versions that are gone included."""
        return _added(self._past_engine_restarts, self.all)

    def begin(self, trial: Trial) -> None:
        """Let a new version take its share from now on."""
        assert self.trial is None, "one trial at a time"
        self.trial = trial

    def end(self, *, promoted: bool) -> Serving:
        """End the trial: the new version serves all from now on, or none. Returns the one that takes no more."""
        trial, self.trial = self.trial, None
        assert trial is not None, "there is no trial to end"
        trial.close()
        gone = trial.old if promoted else trial.new
        if promoted:
            self.stable = trial.new
        self.retiring.append(gone)
        return gone

    async def stop(self, serving: Serving) -> None:
        """End a version's processes."""
        await serving.stop()
        self._past_media_restarts += serving.media.restarts
        self._past_engine_restarts = _added(self._past_engine_restarts, [serving])
        self._past_local_pictures += 0 if serving.encoders is None else serving.encoders.local_pictures
        if serving in self.retiring:
            self.retiring.remove(serving)

    async def aclose(self) -> None:
        """End every version's processes."""
        for serving in self.all:
            await serving.stop()


def _added(past: Counter[str], of: Iterable[Serving]) -> Counter[str]:
    """Return ``past`` with the restarts of these versions' engine processes, by their places in their versions."""
    total = Counter(past)
    for serving in of:
        for one in serving.engine.report():
            total[one.name] += one.restarts
    return total
