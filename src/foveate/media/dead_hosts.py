"""Hosts that lately did not answer, refused at once for a while, so that one of them cannot fill the house.

A state machine over ``now``: no clock, no I/O. A key is a host and port. Only failures of the connection itself count:
an origin that answers, with whatever status, is alive; a transfer that was cancelled or ran out of its request's time
says nothing, or clients could declare hosts dead for each other.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from foveate.core.errors import FetchFailed

HOSTS_MAX: Final = 4096
"""Hosts remembered; the one whose failure is the longest ago is forgotten first."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    dead_until: float = -math.inf
    probing: bool = False


class DeadHosts:
    """Counts consecutive failures a host. ``failures_max`` 0 turns it off."""

    def __init__(self, *, failures_max: int, seconds: float, hosts_max: int = HOSTS_MAX) -> None:
        self._failures_max = failures_max
        self._seconds = seconds
        self._hosts_max = hosts_max
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def __len__(self) -> int:
        """Hosts remembered."""
        return len(self._records)

    def check(self, key: str, now: float) -> None:
        """Raise FetchFailed when ``key`` is held dead now, or is being probed."""
        record = self._records.get(key)
        if record is None or record.failures < self._failures_max:
            return
        if record.probing or now < record.dead_until:
            wait = max(record.dead_until - now, 1.0)
            raise FetchFailed(
                "The media could not be fetched: its origin did not answer several times and is not asked again for a while.",
                detail=key,
                limit_name="fetch.dead_host_failures",
                limit=self._failures_max,
                actual=record.failures,
                retry_after_seconds=wait,
            )

    def enter(self, key: str, now: float) -> None:
        """A transfer begins. The first one after a host's time is its probe, until it ends. Raises FetchFailed."""
        self.check(key, now)
        record = self._records.get(key)
        if record is not None and record.failures >= self._failures_max:
            record.probing = True

    def failed(self, key: str, now: float) -> None:
        """Its connection failed, or it did not answer in time."""
        if self._failures_max == 0:
            return
        record = self._records.setdefault(key, _Record())
        self._records.move_to_end(key)
        record.failures += 1
        record.probing = False
        if record.failures >= self._failures_max:
            record.dead_until = now + self._seconds
        while len(self._records) > self._hosts_max:
            self._records.popitem(last=False)

    def answered(self, key: str) -> None:
        """It is alive."""
        self._records.pop(key, None)

    def left(self, key: str) -> None:
        """The transfer ended without telling anything about the host; if it was the probe, another may be."""
        record = self._records.get(key)
        if record is not None:
            record.probing = False
