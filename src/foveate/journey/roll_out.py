"""Which version of the model answers which request."""

from __future__ import annotations

from foveate.journey.serving import Serving


class RollOut:
    """Holds the version that serves."""

    def __init__(self, stable: Serving) -> None:
        self.stable = stable
