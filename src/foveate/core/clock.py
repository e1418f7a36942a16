"""The one source of "now".

Every timestamp that Foveate records is seconds on the gateway's system-wide monotonic clock (``CLOCK_MONOTONIC``), so a time taken in a
worker process can be compared with one taken in the gateway: a worker on another machine is told by how much its own clock differs.
Wall-clock time appears only where people read it (log lines, ``created``).
"""

from __future__ import annotations

import time

_ahead = 0.0
"""Seconds that the gateway's clock is ahead of this machine's."""


def now() -> float:
    """Return monotonic seconds, comparable between the processes of one server."""
    return time.clock_gettime(time.CLOCK_MONOTONIC) + _ahead


def follow(ahead_seconds: float) -> None:
    """Tell this process, before it takes any time, by how much the gateway's clock is ahead of its machine's."""
    global _ahead
    _ahead = ahead_seconds


def wall() -> float:
    """Return seconds since the epoch, for people and for the API's ``created`` fields."""
    return time.time()


def wall_at(moment: float) -> float:
    """Return when ``moment`` (of :func:`now`, and not long ago) was, in seconds since the epoch."""
    return time.time() - (now() - moment)
