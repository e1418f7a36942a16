"""The one source of "now".

Every timestamp that Foveate records is seconds on the system-wide monotonic clock (``CLOCK_MONOTONIC``), so a time taken in a worker
process can be compared with one taken in the gateway. Wall-clock time appears only where people read it (log lines, ``created``).
"""

from __future__ import annotations

import time


def now() -> float:
    """Return monotonic seconds, comparable between the processes of one machine."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def wall() -> float:
    """Return seconds since the epoch, for people and for the API's ``created`` fields."""
    return time.time()
