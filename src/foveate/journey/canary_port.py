"""What an operator may ask of a roll-out: the part of the service behind ``/admin/canary``."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

State = Literal["none", "loading", "on_trial", "promoted", "rolled_back", "refused"]


class VersionReport(msgspec.Struct, frozen=True):
    """One version of the model. ``model`` is the directory or hub id that it was loaded from.

    The figures are of its last 1,000 requests with media since the trial began; ``errors`` counts those not answered. Times to the first
    token (milliseconds) are of the ``fresh`` requests, whose pictures were in no cache: hits would compare the caches, not the models.
    """

    model: str
    processor_version: str
    encoder_version: str
    requests: int = 0
    errors: int = 0
    fresh: int = 0
    ttft_ms_median: float | None = None
    ttft_ms_p95: float | None = None


class ComparisonReport(msgspec.Struct, frozen=True):
    """Pictures encoded by both versions. ``skipped``: not compared, as there was no room for it.

    ``cosine_*`` and ``norm_ratio_mean`` (new length by old) are over the ``compared``. Of others no cosine can be told: ``rows_differ``,
    ``not_finite`` (the new one gave NaN or Inf), ``failed`` (the new one gave nothing for a picture that the old one had encoded).
    """

    compared: int = 0
    cosine_mean: float | None = None
    cosine_min: float | None = None
    norm_ratio_mean: float | None = None
    rows_differ: int = 0
    not_finite: int = 0
    failed: int = 0
    skipped: int = 0


class CanaryReport(msgspec.Struct, frozen=True):
    """The roll-out under way, or how the last one ended; ``state`` ``none``: there was none since the start.

    ``stable`` answers all that the canary does not. ``share`` is that of contents which meet the canary. ``warmed`` contents had their new
    embeddings made ahead, of ``not_held`` nothing was held that they could be made of. ``reason`` says why it ended.
    ``still_ending`` versions finish requests that began with them. Times are Unix seconds.
    """

    state: State
    stable: VersionReport
    share: float = 0.0
    canary: VersionReport | None = None
    comparisons: ComparisonReport | None = None
    warmed: int = 0
    not_held: int = 0
    reason: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    still_ending: int = 0


class CanaryOperator(Protocol):
    """What an operator may do. One implementation (:class:`foveate.journey.canary.Canaries`)."""

    def report(self) -> CanaryReport:
        """Return the state of the roll-out."""
        ...

    async def start(self, model: str, *, share: float, warm: int, encoder: str | None = None) -> CanaryReport:
        """Load a new version beside the one that serves, and give it its share. ``encoder``: an operator's own, empty: the
        model's, None: that of the settings. Raises CanaryRunning, CanaryRefused.
        """
        ...

    def set_share(self, share: float) -> CanaryReport:
        """Change the share. Raises CanaryNotFound."""
        ...

    def promote(self) -> CanaryReport:
        """Let the new version answer all. Raises CanaryNotFound, EngineUnavailable."""
        ...

    async def rollback(self) -> CanaryReport:
        """Let the old version answer all again; a new one that still loads is given up. Raises CanaryNotFound."""
        ...
