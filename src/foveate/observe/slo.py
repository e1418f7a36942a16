"""Keeps the books of the service-level objectives: attainment, goodput and burn rate over windows, text and multimodal apart."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final, get_args

import msgspec

from foveate.core.stages import Modality
from foveate.decisions.objectives import (
    BUDGET,
    WINDOWS,
    Alert,
    Objective,
    Seen,
    Targets,
    Window,
    alert,
    burn_rate,
    judge,
)
from foveate.observe.records import LedgerRecord

SLOT_SECONDS: Final = 10.0
"""Requests are counted in slots of this length: a window's edge is as sharp as that."""
REMEMBERED_SECONDS: Final = 1.0
"""One scrape reads several figures of one report."""
_SLOTS_MAX: Final = math.ceil(max(WINDOWS.values()) / SLOT_SECONDS) + 1


class WindowReport(msgspec.Struct, frozen=True):
    """One window. ``attainment`` is the share of requests that met every target, ``ttft_attainment`` and ``tpot_attainment`` of those that
    each target judges (null: none); ``goodput`` counts requests a second that met all of them.
    """

    requests: int
    attainment: float | None
    ttft_attainment: float | None
    tpot_attainment: float | None
    goodput: float
    burn_rate: float


class ModalityReport(msgspec.Struct, frozen=True):
    """One modality: its targets, its windows, and the alert that the burn rates give (docs/slo.md)."""

    targets: Targets
    windows: dict[Window, WindowReport]
    alert: Alert | None


class SloReport(msgspec.Struct, frozen=True):
    """Text and multimodal, never mixed. Null: no target is set. ``budget`` is the share of requests that may miss."""

    budget: float
    text: ModalityReport | None
    multimodal: ModalityReport | None


class _Slot(msgspec.Struct, frozen=True):
    """One stretch of time, by its number, and what had been judged and missed of each objective when it began."""

    number: int
    judged: Counter[Objective]
    missed: Counter[Objective]


class _Book:
    """Requests judged and missed since the start, and the slots that the longest window needs."""

    def __init__(self) -> None:
        self.judged: Counter[Objective] = Counter()
        self.missed: Counter[Objective] = Counter()
        self.slots: deque[_Slot] = deque(maxlen=_SLOTS_MAX)

    def note(self, met: Mapping[Objective, bool], now: float) -> None:
        number = int(now / SLOT_SECONDS)
        if not self.slots or self.slots[-1].number != number:
            self.slots.append(_Slot(number, self.judged.copy(), self.missed.copy()))
        for objective, kept in met.items():
            self.judged[objective] += 1
            self.missed[objective] += not kept

    def windows(self, now: float) -> dict[Window, WindowReport]:
        # Slots first: what is judged meanwhile, in the event loop's thread, is then in the totals and in no slot.
        slots = list(self.slots)
        judged, missed = self.judged.copy(), self.missed.copy()
        found: dict[Window, WindowReport] = {}
        for name, seconds in WINDOWS.items():
            # Requests of a window are all but those before its first slot: no scrape adds up six hours.
            place = bisect_right(slots, (now - seconds) / SLOT_SECONDS - 1, key=lambda slot: slot.number)
            before = slots[place] if place < len(slots) else _Slot(0, judged, missed)
            found[name] = _window(judged - before.judged, missed - before.missed, seconds)
        return found


class Objectives:
    """Judges requests as they end. ``now`` gives monotonic seconds; ``count`` is told (modality, objective, verdict) of each judgement.

    Lives on the event loop; reports may be read in another thread.
    """

    def __init__(
        self, targets: Mapping[Modality, Targets], now: Callable[[], float], count: Callable[[str, str, str], None]
    ) -> None:
        self.targets = dict(targets)
        self._now = now
        self._count = count
        self._remembered: tuple[float, SloReport] | None = None
        self._books: dict[str, _Book] = {name: _Book() for name in get_args(Modality)}

    def note(self, record: LedgerRecord) -> None:
        """Judge a request that has ended."""
        modality = record.modality
        if modality == "unknown" or record.outcome == "estimated":
            return
        breakdown = record.breakdown
        served = record.outcome in ("answered", "overloaded", "failed")
        seen = Seen(served, breakdown.ttft_ms, breakdown.tpot_ms, breakdown.total_ms)
        met = judge(self.targets.get(modality, Targets()), seen)
        if met is None:
            return
        self._books[modality].note(met, self._now())
        for objective, kept in met.items():
            self._count(modality, objective, "good" if kept else "bad")

    def report(self) -> SloReport:
        """Return all windows of both modalities."""
        return SloReport(BUDGET, self._of("text"), self._of("multimodal"))

    def gauge(self, read: Callable[[WindowReport], float | None]) -> dict[tuple[str, ...], float]:
        """Return one figure of every window, by (modality, window)."""
        report = self._remembered
        if report is None or self._now() - report[0] > REMEMBERED_SECONDS:
            report = self._remembered = self._now(), self.report()
        found: dict[tuple[str, ...], float] = {}
        for modality, each in (("text", report[1].text), ("multimodal", report[1].multimodal)):
            for window, seen in each.windows.items() if each is not None else ():
                value = read(seen)
                if value is not None:
                    found[modality, window] = value
        return found

    def _of(self, modality: Modality) -> ModalityReport | None:
        targets = self.targets.get(modality, Targets())
        if not targets.stated:
            return None
        windows = self._books[modality].windows(self._now())
        return ModalityReport(targets, windows, alert({name: each.burn_rate for name, each in windows.items()}))


def _window(judged: Counter[Objective], missed: Counter[Objective], seconds: float) -> WindowReport:
    def attained(objective: Objective) -> float | None:
        return 1 - missed[objective] / judged[objective] if judged[objective] else None

    return WindowReport(
        requests=judged["all"],
        attainment=attained("all"),
        ttft_attainment=attained("ttft"),
        tpot_attainment=attained("tpot"),
        goodput=(judged["all"] - missed["all"]) / seconds,
        burn_rate=burn_rate(judged["all"], missed["all"]),
    )
