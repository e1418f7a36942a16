"""What a separate encoder gained and what it cost: one topology's times to first token against another's, stage by stage.

Percentiles of stages do not add up to the percentile of the whole: the request that waits longest for the encoder is not the one whose
prefill takes longest. So a percentile is looked at through the requests around it, and their stages' means are compared; these add up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from foveate.bench.figures import percentile
from foveate.bench.load import Told

WATCHED: Final = ("encoder_queue", "vision_encode", "embedding_transfer", "llm_queue", "llm_prefill")
"""The stages that a topology changes."""
HOP: Final = ("encoder_queue", "embedding_transfer")
"""What an encoder in a process of its own is paid for with."""
ELSEWHERE: Final = "elsewhere"
"""All other stages, and what only the client sees."""
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
BAND_MAX: Final = 0.1
"""Of the requests, on either side of the percentile: enough for a mean, few enough to be alike. Above p80 it is half of what lies above."""

Round = tuple[Sequence[Told], Sequence[Told]]
"""Answers of the base and of the topology that is compared with it, in one round and of one modality; each at least one."""


class Trade(msgspec.Struct, frozen=True):
    """A topology less the base, at one percentile: milliseconds, less than 0 where it is faster.

    ``parts`` by stage add up to the mean of ``totals``, a value a round.
    """

    topology: str
    kind: str
    percentile: str
    parts: dict[str, float]
    totals: tuple[float, ...]

    @property
    def total(self) -> float:
        """How much later the first token comes."""
        return statistics.fmean(self.totals)

    @property
    def gained(self) -> float:
        """What became shorter, without its sign."""
        return -sum(part for part in self.parts.values() if part < 0)

    @property
    def paid(self) -> float:
        """What became longer."""
        return sum(part for part in self.parts.values() if part > 0)

    @property
    def hop(self) -> float:
        """The encoder's queue and the transfer, against the base's: less than 0 where they became shorter."""
        return sum(self.parts[stage] for stage in HOP)

    @property
    def outcome(self) -> str:
        """Whether the rounds agree on which of the two is faster."""
        if len(self.totals) < 2:
            return "one round, which says nothing of the spread"
        faster = sum(total < 0 for total in self.totals)
        if faster == len(self.totals):
            return "faster in every round"
        if all(total > 0 for total in self.totals):
            return "slower in every round"
        return f"no clear difference: faster in {faster} of {len(self.totals)} rounds"

    def sentence(self) -> str:
        """The verdict in words, largest part first; parts under half a millisecond are left out."""
        shown = sorted((part for part in self.parts.items() if abs(part[1]) >= 0.5), key=lambda part: -abs(part[1]))
        parts = (
            ", ".join(f"{stage} {signed(value)}" for stage, value in shown) or "no stage differs by half a millisecond"
        )
        spread = f"{signed(min(self.totals))} to {signed(max(self.totals))}"
        return (
            f"{self.topology} at {self.percentile}, {self.kind}: {signed(self.total)} ms ({parts}): gained {self.gained:.0f}, "
            f"paid {self.paid:.0f}, encoder's queue and transfer {signed(self.hop)}; {self.outcome} ({spread})"
        )


def signed(milliseconds: float) -> str:
    """Return whole milliseconds with their sign."""
    whole = round(milliseconds)
    return "0" if whole == 0 else f"{'+' if whole > 0 else '−'}{abs(whole)}"


def compare(topology: str, kind: str, percentile_: str, rounds: Sequence[Round]) -> Trade:
    """Compare rounds, at least one, at one of :data:`PERCENTILES`."""
    share = PERCENTILES[percentile_]
    found = [(around(base, share), around(other, share)) for base, other in rounds]
    each = [{stage: theirs[stage] - base[stage] for stage in base} for base, theirs in found]
    parts = {stage: statistics.fmean(one[stage] for one in each) for stage in (*WATCHED, ELSEWHERE)}
    return Trade(topology, kind, percentile_, parts, tuple(sum(one.values()) for one in each))


def around(answers: Sequence[Told], share: float) -> dict[str, float]:
    """Return the mean milliseconds by stage, :data:`ELSEWHERE` included, of the requests around a percentile of the time to first token."""
    ordered = sorted(answers, key=lambda told: told.ttft_ms)
    count, band = len(ordered), min(BAND_MAX, (1 - share) / 2)
    middle = min(int(share * count), count - 1)
    low, high = min(middle, math.ceil((share - band) * count)), max(middle + 1, math.floor((share + band) * count))
    chosen = ordered[low:high]
    means = {stage: statistics.fmean(told.timing.get(stage, 0.0) for told in chosen) for stage in WATCHED}
    return {**means, ELSEWHERE: statistics.fmean(told.ttft_ms for told in chosen) - sum(means.values())}


def stage_rows(topology: str, kind: str, answers: Sequence[Told]) -> list[str]:
    """Return a table's rows in Markdown: each stage's own percentiles in milliseconds, and those of the time to first token."""
    rows = []
    for stage in (*WATCHED, "ttft"):
        values = [told.ttft_ms if stage == "ttft" else told.timing.get(stage, 0.0) for told in answers]
        if any(values):
            shown = " | ".join(f"{percentile(values, share):.1f}" for share in PERCENTILES.values())
            rows.append(f"| {topology} | {kind} | {stage} | {shown} |")
    return rows
