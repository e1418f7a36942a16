"""Which lines of a request log somebody wants to see: filters, the latest, the slowest. Pure but for what it iterates over."""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from foveate.core.stages import STAGES, Stage
from foveate.observe.request_line import RequestLine

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
Logged = tuple[RequestLine, bytes]


class Query(msgspec.Struct, frozen=True):
    """What a line must be. ``None``: whatever it is.

    ``status`` is an outcome (``answered``) or an error's code (``queue_full``). ``stage`` is a stage that took time.
    """

    modality: str | None = None
    stage: Stage | None = None
    status: str | None = None
    since: datetime | None = None
    tenant: str | None = None
    tier: str | None = None
    model: str | None = None

    def matches(self, line: RequestLine) -> bool:
        """Whether the line is one of those that are wanted."""
        for wanted, found in (
            (self.modality, line.modality),
            (self.tenant, line.tenant),
            (self.tier, line.tier),
            (self.model, line.model),
        ):
            if wanted is not None and wanted != found:
                return False
        if self.status is not None and self.status not in (line.outcome, line.error):
            return False
        if self.stage is not None and stages_of(line).get(self.stage) is None:
            return False
        return self.since is None or ended_at(line) >= self.since

    def weight(self, line: RequestLine) -> float:
        """Return what ``slowest`` ranks by, in milliseconds: the stage's time, else time to first token, else until the end."""
        if self.stage is not None:
            return stages_of(line).get(self.stage, 0.0)
        return line.total_ms if line.ttft_ms is None else line.ttft_ms


def slowest(lines: Iterable[Logged], query: Query, number: int) -> list[Logged]:
    """Return the ``number`` slowest, the slowest first."""
    return heapq.nlargest(
        number, (logged for logged in lines if query.matches(logged[0])), lambda it: query.weight(it[0])
    )


def latest(lines: Iterable[Logged], query: Query, number: int) -> list[Logged]:
    """Return the ``number`` that ended last, oldest first."""
    return list(deque((logged for logged in lines if query.matches(logged[0])), maxlen=number))


def find(lines: Iterable[Logged], request_id: str) -> RequestLine:
    """Return the request with this id, or the only one whose id begins so. Raises LookupError, a sentence, when that is not one."""
    begun: dict[str, RequestLine] = {}
    for line, _ in lines:
        if line.id == request_id:
            begun = {line.id: line}
        elif line.id.startswith(request_id) and request_id not in begun and len(begun) < 2:
            begun[line.id] = line
    if not begun:
        raise LookupError(f"The log has no request {request_id!r}.")
    if len(begun) > 1:
        raise LookupError(f"The log has several requests whose id begins with {request_id!r}. Give more of it.")
    return next(iter(begun.values()))


def stages_of(line: RequestLine) -> dict[Stage, float]:
    """Return the stages of the critical path that happened, in milliseconds."""
    found: dict[Stage, float] = {}
    for stage in STAGES:
        ms = getattr(line, f"{stage}_ms")
        if isinstance(ms, float | int):
            found[stage] = ms
    return found


def ended_at(line: RequestLine) -> datetime:
    """Return when the request ended. A time that cannot be read is the beginning of all times."""
    try:
        return datetime.fromisoformat(line.time)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def moment(text: str, now: datetime) -> datetime:
    """Return the moment that ``text`` names: ``90s``, ``15m``, ``2h``, ``7d`` before ``now``, or an ISO time (UTC where it has no zone).

    Raises ValueError.
    """
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is not None:
        return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a time (2026-11-30T07:40) nor a duration (90s, 15m, 2h, 7d)") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
