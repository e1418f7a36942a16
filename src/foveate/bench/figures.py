"""What a benchmark reports: a figure for each round, a goal, and whether it was met."""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One measured figure, a value a round. ``goal`` holds for the median: at most it, or at least it.

    ``unit`` is ``x`` for ratios, ``ms`` or ``%``; ``compared`` says in words what was compared with what, and how often.
    """

    name: str
    compared: str
    values: tuple[float, ...]
    unit: str
    goal: float | None = None
    direction: Literal["at most", "at least"] = "at most"

    @property
    def median(self) -> float:
        """The figure that the goal is about."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; ``None`` when there is none."""
        if self.goal is None:
            return None
        return self.median <= self.goal if self.direction == "at most" else self.median >= self.goal

    def row(self) -> tuple[str, str, str, str, str, str]:
        """The figure as a table row: name, median, spread, goal, verdict, what was compared."""
        digits = 2 if self.unit == "x" else 3
        spread = f"{min(self.values):.{digits}f} – {max(self.values):.{digits}f}"
        goal = "–" if self.goal is None else f"{self.direction} {self.goal:g} {self.unit}"
        verdict = {True: "met", False: "missed", None: "–"}[self.met]
        return self.name, f"{self.median:.{digits}f} {self.unit}", spread, goal, verdict, self.compared


def percentile(values: list[float], share: float) -> float:
    """Return the value at ``share`` (0..1) of the sorted values, nearest rank."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
