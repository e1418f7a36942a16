"""A new version of the model beside the one that serves: which contents meet it, and whether it must go.

Pure. :func:`meets_new` depends on nothing but the content, the roll-out and its share, so that a picture always meets the same version
within a stage, whichever process asks; a larger share moves contents from the old version to the new and none back.
:func:`verdict` reads the evidence.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec
from blake3 import blake3

Fault = Literal["not_finite", "rows", "cosine", "norm", "errors", "latency", "engine"]
"""Why a new version is taken back: embeddings that are no numbers, of other rows although the processor is the same, too far from the
old ones in direction or in length; more errors, more time, or a process that died."""

_PLACES: Final = 1 << 53
"""As many as a float tells apart, so that the last place is still below 1."""
ERRORS_MIN: Final = 5
"""Fewer errors of a new version say nothing yet."""
ERROR_SHARE_FLOOR: Final = 0.01
"""An old version with fewer errors counts as having these: twice nothing is nothing."""
_Z: Final = 1.96
"""Two-sided 95 % of the normal distribution."""


class Thresholds(msgspec.Struct, frozen=True):
    """What a new version may differ by (settings ``canary.*``). ``samples_min``: comparisons, and requests of each version, before
    means and medians are judged.
    """

    cosine_min: float
    norm_ratio_max: float
    error_ratio_max: float
    latency_ratio_max: float
    samples_min: int


class Record(msgspec.Struct, frozen=True):
    """What is known of one version's requests with media: how many ended, how many in an error, and the time to the first token of those
    whose pictures were in no cache (``fresh`` of them), in milliseconds; None where there are none.
    """

    requests: int = 0
    errors: int = 0
    fresh: int = 0
    ttft_ms_median: float | None = None
    ttft_ms_p95: float | None = None


class Differences(msgspec.Struct, frozen=True):
    """Pictures encoded by both versions. ``cosine_*`` and ``norm_ratio_mean`` are over the ``compared``, each the mean of its rows: the
    cosine between the two embeddings of a row, and the new one's length by the old one's. ``rows_differ`` and ``not_finite`` (of the new
    version) cannot be compared; ``failed``: the new version failed on a picture that the old one had encoded.
    """

    compared: int = 0
    cosine_mean: float | None = None
    cosine_min: float | None = None
    norm_ratio_mean: float | None = None
    rows_differ: int = 0
    not_finite: int = 0
    failed: int = 0


class Evidence(msgspec.Struct, frozen=True):
    """All that is judged. ``same_processor``: both versions give a picture the same number of rows; ``alive``: the new version's
    processes never died.
    """

    old: Record
    new: Record
    differences: Differences
    same_processor: bool
    alive: bool = True


class Verdict(msgspec.Struct, frozen=True):
    """Why the new version must go. ``why`` is one sentence with the figures."""

    fault: Fault
    why: str


def place(digest: str, salt: str) -> float:
    """Return where a content stands in a roll-out: evenly spread over [0, 1) and the same for ever.

    ``salt`` names the roll-out, so that not the same contents go first in every one.
    """
    hashed = blake3(f"{salt}\0{digest}".encode()).digest(8)
    return (int.from_bytes(hashed, "big") >> 11) / _PLACES


def meets_new(digest: str, salt: str, share: float) -> bool:
    """Whether a content meets the new version when ``share`` (0..1) of all contents do."""
    return place(digest, salt) < share


def verdict(evidence: Evidence, limits: Thresholds) -> Verdict | None:
    """Return why the new version must go, or None as long as nothing speaks against it."""
    if not evidence.alive:
        return Verdict("engine", "A process of the new version died.")
    found = evidence.differences
    if found.not_finite:
        return Verdict("not_finite", "The new version gave an embedding with values that are not finite (NaN or Inf).")
    if found.rows_differ and evidence.same_processor:
        return Verdict("rows", "The new version gave a picture another number or width of rows, from the same inputs.")
    return _far(found, limits) or _failing(evidence, limits) or _slow(evidence, limits)


def _far(found: Differences, limits: Thresholds) -> Verdict | None:
    if found.compared < limits.samples_min or found.cosine_mean is None or found.norm_ratio_mean is None:
        return None
    if found.cosine_mean < limits.cosine_min:
        told = f"is {found.cosine_mean:.4f} on average of {found.compared} pictures, below {limits.cosine_min:g}"
        return Verdict("cosine", f"The cosine between old and new embeddings {told} (canary.cosine_min).")
    ratio = found.norm_ratio_mean
    if not 1 / limits.norm_ratio_max <= ratio <= limits.norm_ratio_max:
        told = f"{ratio:.3f} times as long on average of {found.compared} pictures, more than {limits.norm_ratio_max:g} times apart"
        return Verdict("norm", f"New embeddings are {told} (canary.norm_ratio_max).")
    return None


def _failing(evidence: Evidence, limits: Thresholds) -> Verdict | None:
    old, new, found = evidence.old, evidence.new, evidence.differences
    base = max(old.errors / old.requests if old.requests else 0.0, ERROR_SHARE_FLOOR)
    if _more(new.errors, new.requests, limits.error_ratio_max * base):
        told = f"{new.errors} of {new.requests} requests, of the old one's {old.errors} of {old.requests}"
        return Verdict("errors", f"The new version's errors end {told} (canary.error_ratio_max).")
    tried = found.compared + found.rows_differ + found.failed
    if _more(found.failed, tried, limits.error_ratio_max * ERROR_SHARE_FLOOR):
        told = f"{found.failed} of {tried} pictures that the old one encoded"
        return Verdict("errors", f"The new version failed on {told} (canary.error_ratio_max).")
    return None


def _more(errors: int, of: int, share_max: float) -> bool:
    """Whether the errors are more than ``share_max``, beyond what chance would do."""
    return errors >= ERRORS_MIN and share_at_least(errors, of) > share_max


def share_at_least(found: int, of: int) -> float:
    """Return the lower bound of the share behind ``found`` of ``of``, at 95 % (Wilson's interval, JASA 22, 1927). 0 where ``of`` is 0."""
    if not of:
        return 0.0
    share, square = found / of, _Z * _Z
    middle = share + square / (2 * of)
    spread = _Z * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max((middle - spread) / (1 + square / of), 0.0)


def _slow(evidence: Evidence, limits: Thresholds) -> Verdict | None:
    old, new = evidence.old, evidence.new
    if min(old.fresh, new.fresh) < limits.samples_min or not old.ttft_ms_median or new.ttft_ms_median is None:
        return None
    if new.ttft_ms_median <= limits.latency_ratio_max * old.ttft_ms_median:
        return None
    told = f"{new.ttft_ms_median:.0f} ms in the new version and {old.ttft_ms_median:.0f} ms in the old one"
    return Verdict("latency", f"The median time to the first token is {told} (canary.latency_ratio_max).")
