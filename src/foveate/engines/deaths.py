"""How many processes ended while they held one request: it may be what ends them, so a third is not given it."""

from __future__ import annotations

from typing import Final

from foveate.core.errors import EngineDied, EngineUnavailable, FoveateError
from foveate.engines.port import EngineWork

DEATHS_MAX: Final = 2
"""A request that two processes ended with is given to no other."""


class Deaths:
    """Those of one request, over all processes that it is given to."""

    def __init__(self, work: EngineWork) -> None:
        self._count = work.deaths
        self._last: EngineDied | None = None

    def count(self, error: FoveateError) -> None:
        """Note why a process did not answer, if it is that it died. Raises the error when it was one too many."""
        if not isinstance(error, EngineDied):
            return
        self._count += 1
        error.deaths = self._count
        self._last = error
        if self._count >= DEATHS_MAX:
            raise error

    def told(self, error: EngineUnavailable) -> FoveateError:
        """Return what to raise where no process is left: that one died, if one did, for whoever tries again to know."""
        return self._last or error
