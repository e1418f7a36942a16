"""Service-level objectives: whether a request met them, and how fast an error budget is spent. Pure.

Burn rates and the pairs of windows follow Google's SRE workbook, chapter 5 ("Multiwindow, multi-burn-rate alerts"): a burn rate of 1 spends
exactly the budget; an alert needs a long window, so that it means something, and a short one, so that it ends when the trouble does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

Objective = Literal["ttft", "tpot", "all"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
Window = Literal["5m", "30m", "1h", "6h"]
WINDOWS: Final[dict[Window, float]] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21600.0}
"""Name and length in seconds, the shortest first."""
BUDGET: Final = 0.05
"""The share of requests that may miss a target that is a 95th percentile."""
Alert = Literal["page", "ticket"]
PAIRS: Final[tuple[tuple[Alert, Window, Window, float], ...]] = (
    ("page", "1h", "5m", 14.4),
    ("ticket", "6h", "30m", 6.0),
)
"""Severity, long window, short window, and the burn rate that both must exceed (the workbook's, for a budget of 30 days)."""


class Targets(msgspec.Struct, frozen=True):
    """What 95 of 100 requests of a modality must keep, in milliseconds; None: nothing."""

    ttft_p95_ms: float | None = None
    tpot_p95_ms: float | None = None

    @property
    def stated(self) -> bool:
        """Whether there is any."""
        return self.ttft_p95_ms is not None or self.tpot_p95_ms is not None


class Seen(msgspec.Struct, frozen=True):
    """What became of one request, as its client saw it: milliseconds, None where there was none.

    ``served``: it was the server's to answer, or it did. ``waited_ms``: until the end, whatever that was.
    """

    served: bool
    ttft_ms: float | None
    tpot_ms: float | None
    waited_ms: float


def judge(targets: Targets, seen: Seen) -> dict[Objective, bool] | None:
    """Return whether each objective was met; None where the request says nothing of them.

    A request that failed on the server's side missed. One that its client gave up, or that was refused, counts only if its client had
    waited longer for the first token than the target allows.
    """
    if not targets.stated:
        return None
    late = targets.ttft_p95_ms is not None and seen.waited_ms > targets.ttft_p95_ms
    if seen.ttft_ms is None and not seen.served and not late:
        return None
    met: dict[Objective, bool] = {}
    if targets.ttft_p95_ms is not None:
        met["ttft"] = seen.ttft_ms is not None and seen.ttft_ms <= targets.ttft_p95_ms
    if targets.tpot_p95_ms is not None and (seen.tpot_ms is not None or seen.ttft_ms is None):
        # An answer of one token has no time per further token: it says nothing of this objective.
        met["tpot"] = seen.tpot_ms is not None and seen.tpot_ms <= targets.tpot_p95_ms
    return {**met, "all": all(met.values())} if met else None


def burn_rate(requests: int, missed: int) -> float:
    """Return how many times as fast as allowed the budget is spent; 0 without requests."""
    return missed / requests / BUDGET if requests else 0.0


def alert(burn: Mapping[Window, float]) -> Alert | None:
    """Return the most severe alert that these burn rates give."""
    return next((name for name, long, short, most in PAIRS if burn[long] > most and burn[short] > most), None)
