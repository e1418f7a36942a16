"""Whether a worker still answers: a ping every :data:`TICK_SECONDS`, and too many in a row without an answer mean that it hangs.

For workers whose receiving thread does nothing that takes long. Counted in pings, not by the clock: time in which this process stood still
itself proves nothing.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from foveate.runtime.port import Worker

TICK_SECONDS: Final = 0.25


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Answer at once, whatever else is being done: a process that does not is stopped or stuck."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to a :class:`Ping`."""


class Pulse:
    """One worker's."""

    def __init__(self, seconds_max: float) -> None:
        """It hangs when it has answered nothing for ``seconds_max``."""
        self._unanswered_max = math.ceil(seconds_max / TICK_SECONDS)
        self._unanswered = 0

    @property
    def silent_seconds(self) -> float:
        """For how long it has answered nothing."""
        return self._unanswered * TICK_SECONDS

    def answered(self) -> None:
        """It sent something."""
        self._unanswered = 0

    def ask(self, worker: Worker) -> bool:
        """Ping it, every tick; false when it hangs."""
        if self._unanswered >= self._unanswered_max:
            return False
        self._unanswered += 1
        worker.send(Ping())
        return True
