"""A new version of the model on trial beside the one that serves: who meets it, and what is seen of the two.

Lives on the event loop and waits for nothing. What is done with it: :mod:`foveate.journey.canary`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from foveate.caches.encoder import EncoderEntry
from foveate.caches.keys import EncoderKey
from foveate.core.clock import wall
from foveate.core.errors import FoveateError, MediaNotHeld, Overloaded
from foveate.decisions.canary import Differences, Evidence, Record, Thresholds, Verdict, meets_new, verdict
from foveate.journey.embedding_difference import Difference
from foveate.journey.holds import Lease
from foveate.journey.serving import Serving
from foveate.journey.source import Source
from foveate.observe.metrics import Metrics
from foveate.observe.records import ROLES, LedgerRecord, Role

SAMPLES_WAITING_MAX: Final = 4
"""Each keeps one picture's bytes in the arena."""
REQUESTS_KEPT: Final = 1000
"""Errors and times are those of so many of each version's last requests."""
COMPARED_KEPT: Final = 10_000
"""Contents that are remembered as compared: each is once, as far as that goes."""


@dataclass(frozen=True)
class Sample:
    """A picture that one version encoded and the other is to encode too. ``by_new``: the one on trial did. ``lease`` holds the
    embeddings that there are, ``source`` what others can be made of; both are given back by :meth:`release`.
    """

    key: EncoderKey
    lease: Lease[EncoderEntry]
    source: Source
    by_new: bool

    def release(self) -> None:
        """Give everything back."""
        self.lease.release()
        self.source.release()


class Trial:
    """``share`` (0..1) of the contents meet ``new``. ``compared_share`` of all contents are encoded by both."""

    def __init__(
        self, old: Serving, new: Serving, *, share: float, compared_share: float, limits: Thresholds, metrics: Metrics
    ) -> None:
        self.old = old
        self.new = new
        self.share = share
        self.started_at = wall()
        self.warmed = self.not_held = 0
        """Contents whose new embeddings were made ahead, and those of which nothing was held that they could be made of."""
        self.skipped = 0
        """Samples that were not compared because the server had no room for it."""
        self.samples: deque[Sample] = deque()
        self.news = asyncio.Event()
        """Set when there is a sample, or evidence to judge."""
        self._salt = f"{new.processor_version} {new.encoder_version} {self.started_at}"
        self._compared_share = compared_share
        self._limits = limits
        self._metrics = metrics
        self._requests: dict[Role, _Requests] = {role: _Requests() for role in ROLES}
        self._differences = _Differences()
        self._restarts = new.restarts()
        self._compared: dict[str, None] = {}
        self.closed = False

    def role_of(self, digest: str) -> Role:
        """Return which version a request whose first medium has this content meets."""
        return "canary" if meets_new(digest, self._salt, self.share) else "stable"

    def ended(self, role: Role, record: LedgerRecord, error: FoveateError | None) -> None:
        """Note how a request ended, and in which ``error``, that was given to one of the versions while the trial went on.

        What the client took back, what there was no room for, and what was named though the version's caches do not hold it yet, says
        nothing about a version.
        """
        self._metrics.count("foveate_canary_requests_total", role, record.outcome)
        ttft_ms = record.breakdown.ttft_ms
        if ttft_ms is not None:
            self._metrics.observe("foveate_canary_ttft_seconds", role, value=ttft_ms / 1e3)
        if record.outcome == "cancelled" or isinstance(error, Overloaded | MediaNotHeld):
            return
        counts = record.counts
        fresh = not (counts.encoder_cache_hits or counts.processor_cache_hits or counts.shared)
        self._requests[role].note(record.outcome != "answered", ttft_ms if fresh else None)
        self.news.set()

    # --------------------------------------------------------------------------------------------------------- comparison

    def wants(self, digest: str) -> bool:
        """Whether a picture of this content should be encoded by both versions."""
        if (
            self.closed
            or digest in self._compared
            or not meets_new(digest, f"compare {self._salt}", self._compared_share)
        ):
            return False
        if len(self.samples) >= SAMPLES_WAITING_MAX:
            self.skip()
            return False
        return True

    def offer(self, sample: Sample) -> None:
        """Queue a picture to be compared."""
        self.samples.append(sample)
        self._compared[sample.key.digest] = None
        if len(self._compared) > COMPARED_KEPT:
            del self._compared[next(iter(self._compared))]
        self.news.set()

    def skip(self) -> None:
        """Note a sample that is not compared, which says nothing about either version."""
        self.skipped += 1
        self._metrics.count("foveate_canary_comparisons_total", "skipped")

    def failed(self) -> None:
        """Note that the new version failed on a picture that the old one had encoded."""
        self._differences.failed += 1
        self._metrics.count("foveate_canary_comparisons_total", "failed")

    def note(self, found: Difference) -> None:
        """Note a comparison."""
        self._metrics.count("foveate_canary_comparisons_total", self._differences.note(found))

    # ------------------------------------------------------------------------------------------------------------ judgement

    def evidence(self) -> Evidence:
        """Return all that is known."""
        return Evidence(
            old=self._requests["stable"].record(),
            new=self._requests["canary"].record(),
            differences=self._differences.told(),
            same_processor=self.old.processor_version == self.new.processor_version,
            alive=self.new.restarts() == self._restarts and self.new.engine.ready,
        )

    def verdict(self) -> Verdict | None:
        """Return why the new version must go, if it must."""
        return verdict(self.evidence(), self._limits)

    def close(self) -> None:
        """Let the samples go; none is taken any more."""
        self.closed = True
        while self.samples:
            self.samples.popleft().release()


class _Requests:
    """One version's last requests."""

    def __init__(self) -> None:
        self._errors: deque[bool] = deque(maxlen=REQUESTS_KEPT)
        self._ttft_ms: deque[float] = deque(maxlen=REQUESTS_KEPT)

    def note(self, error: bool, fresh_ttft_ms: float | None) -> None:
        self._errors.append(error)
        if fresh_ttft_ms is not None:
            self._ttft_ms.append(fresh_ttft_ms)

    def record(self) -> Record:
        times = sorted(self._ttft_ms)
        return Record(
            requests=len(self._errors),
            errors=sum(self._errors),
            fresh=len(times),
            ttft_ms_median=median(times) if times else None,
            ttft_ms_p95=times[min(len(times) * 95 // 100, len(times) - 1)] if times else None,
        )


class _Differences:
    """Of all comparisons so far; means over the last of them."""

    def __init__(self) -> None:
        self.failed = 0
        self._cosines: deque[float] = deque(maxlen=REQUESTS_KEPT)
        self._norm_ratios: deque[float] = deque(maxlen=REQUESTS_KEPT)
        self._compared = self._rows_differ = self._not_finite = 0
        self._cosine_min: float | None = None

    def note(self, found: Difference) -> str:
        """Count it; return its name in the metrics."""
        if not found.finite:
            self._not_finite += 1
            return "not_finite"
        if not found.same_shape:
            self._rows_differ += 1
            return "rows_differ"
        if found.cosine is None or found.norm_ratio is None:
            return "skipped"
        self._compared += 1
        self._cosines.append(found.cosine)
        self._norm_ratios.append(found.norm_ratio)
        self._cosine_min = found.cosine if self._cosine_min is None else min(self._cosine_min, found.cosine)
        return "compared"

    def told(self) -> Differences:
        return Differences(
            compared=self._compared,
            cosine_mean=fmean(self._cosines) if self._cosines else None,
            cosine_min=self._cosine_min,
            norm_ratio_mean=fmean(self._norm_ratios) if self._norm_ratios else None,
            rows_differ=self._rows_differ,
            not_finite=self._not_finite,
            failed=self.failed,
        )
