"""How late the event loop runs what is due: the probe that stays in the product.

Every ``interval_seconds`` the probe asks to be woken and measures how much later it was. A stall longer than the
interval would hide the samples it held up ("coordinated omission", G. Tene): they are filled in, as the lag that each
of them would have met. uvloop's timers count in whole milliseconds, so a lag below about 1 ms is noise.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from foveate.core import clock

INTERVAL_SECONDS: Final = 0.01
"""100 wake-ups a second, about 1 % of a core when idle. Each samples what an event arriving just then would meet."""


def quantile(samples: list[float], q: float) -> float:
    """Return the ``q`` quantile by nearest rank: a sample that such a share does not exceed; 0 without samples."""
    if not samples:
        return 0.0
    ordered = sorted(samples)
    return ordered[max(math.ceil(q * len(ordered)), 1) - 1]


class LoopLag:
    """The probe. An async context that owns its timer; ``on_sample`` is called with every sample, in seconds."""

    def __init__(
        self,
        on_sample: Callable[[float], None] | None = None,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        window_seconds: float = 30.0,
    ) -> None:
        self._on_sample = on_sample
        self._interval = interval_seconds
        self._samples: deque[float] = deque(maxlen=max(round(window_seconds / interval_seconds), 1))
        self._timer: asyncio.TimerHandle | None = None

    def p99(self) -> float:
        """99th percentile of the lag over the window, in seconds."""
        return quantile(list(self._samples), 0.99)

    def max(self) -> float:
        """Largest lag of the window, in seconds."""
        return max(list(self._samples), default=0.0)

    @property
    def samples(self) -> int:
        """Samples in the window."""
        return len(self._samples)

    def clear(self) -> None:
        """Forget the samples: a measurement begins."""
        self._samples.clear()

    def record(self, lag: float) -> None:
        """Take one measured lag, and with it the samples that it held up."""
        remaining = lag
        for _ in range(self._samples.maxlen or 1):
            self._samples.append(remaining)
            if self._on_sample is not None:
                self._on_sample(remaining)
            remaining -= self._interval
            if remaining <= 0:
                break

    async def __aenter__(self) -> LoopLag:
        self._wait(asyncio.get_running_loop())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        # A bare timer costs half of what a sleeping task does.
        due = clock.now() + self._interval
        self._timer = loop.call_later(self._interval, self._woken, loop, due)

    def _woken(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        lag = max(clock.now() - due, 0.0)
        self._wait(loop)
        self.record(lag)
