"""Hosts that lately did not answer, refused at once for a while, so that one of them cannot fill the house.

A state machine over ``now``: no clock, no I/O. A key is a host and port. Only what no client can bring about counts: no connection, no
TLS, or no byte of an answer at all, and the latter not of a host that has answered others meanwhile or lately: whoever knows a slow page
of it must not be able to declare it dead for others. An origin that answers, with whatever status and however slow its body, is alive; a
transfer that was cancelled, ran out of its request's time or did not get as far as the host says nothing.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

from foveate.core.errors import FetchFailed

Sign = Literal["none", "unreachable", "silent", "alive"]
"""What an exchange told about its host: nothing; no connection; a connection, but not a byte; a status line."""

HOSTS_MAX: Final = 4096
"""Hosts remembered; the one that was heard of the longest ago is forgotten first."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    dead_until: float = -math.inf
    answered_at: float = -math.inf
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
        """An exchange begins. The first one after a host's time is its probe, until it ends. Raises FetchFailed."""
        if self._failures_max == 0:
            return
        self.check(key, now)
        record = self._records.get(key)
        if record is not None and record.failures >= self._failures_max:
            record.probing = True

    def ended(self, key: str, sign: Sign, *, since: float, now: float) -> None:
        """An exchange that began at ``since`` ended, and told ``sign``."""
        if self._failures_max == 0:
            return
        record = self._records.get(key)
        if record is not None:
            record.probing = False
            if sign == "silent" and record.answered_at >= since - self._seconds:
                return
        if sign == "none":
            return
        if record is None:
            record = self._records[key] = _Record()
        self._records.move_to_end(key)
        if sign == "alive":
            record.failures, record.answered_at = 0, now
        else:
            record.failures += 1
            if record.failures >= self._failures_max:
                record.dead_until = now + self._seconds
        while len(self._records) > self._hosts_max:
            self._records.popitem(last=False)
