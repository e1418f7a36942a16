"""How long to wait before a worker that ended is started again."""

from __future__ import annotations

from typing import Final

_SECONDS: Final = 0.05
SECONDS_MAX: Final = 5.0
_DOUBLINGS_MAX: Final = 7
"""By then it is :data:`SECONDS_MAX`. A worker that cannot start for an hour fails a thousand times, and no float holds 2 ** 1024."""


def restart_pause(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: none after the first, then 0.2, doubled with each, up to 5."""
    return min(_SECONDS * 2.0 ** min(failures, _DOUBLINGS_MAX), SECONDS_MAX) if failures > 1 else 0.0
