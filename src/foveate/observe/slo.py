"""Keeps the books of the service-level objectives: attainment, goodput and burn rate over windows, text and multimodal apart."""

from __future__ import annotations

import math
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


class _Slot:
    """Requests that ended within one stretch of time: judged and missed, by objective."""

    __slots__ = ("judged", "missed", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.judged: Counter[Objective] = Counter()
        self.missed: Counter[Objective] = Counter()


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
        self._slots: dict[str, deque[_Slot]] = {name: deque(maxlen=_SLOTS_MAX) for name in get_args(Modality)}

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
        slot = self._slot(modality)
        for objective, kept in met.items():
            slot.judged[objective] += 1
            slot.missed[objective] += not kept
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

    def _slot(self, modality: str) -> _Slot:
        number = int(self._now() / SLOT_SECONDS)
        slots = self._slots[modality]
        if not slots or slots[-1].number != number:
            slots.append(_Slot(number))
        return slots[-1]

    def _of(self, modality: Modality) -> ModalityReport | None:
        targets = self.targets.get(modality, Targets())
        if not targets.stated:
            return None
        now = self._now()
        slots = list(self._slots[modality])
        judged: Counter[Objective] = Counter()
        missed: Counter[Objective] = Counter()
        windows: dict[Window, WindowReport] = {}
        # One pass from the newest slot on: each window has all of the shorter ones in it.
        for name, seconds in WINDOWS.items():
            while slots and (slots[-1].number + 1) * SLOT_SECONDS > now - seconds:
                slot = slots.pop()
                judged.update(slot.judged)
                missed.update(slot.missed)
            windows[name] = _window(judged, missed, seconds)
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
