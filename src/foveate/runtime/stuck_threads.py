"""A thread whose step does not end takes its process with it, as one that ends unexpectedly does (:mod:`foveate.runtime.dying_threads`).

The gateway sees neither: the thread that receives answers its pings meanwhile (:mod:`foveate.runtime.pulse`), unless the one that is stuck
holds the interpreter, and then nothing is answered. Counted in looks, not by the clock, for the pulse's reason: time in which the process
itself stood still proves nothing.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import threading
import time
from typing import Final

LOOK_SECONDS: Final = 0.25


class Steps:
    """The steps of one thread, which enters it for each."""

    def __init__(self) -> None:
        self.running = 0
        """The number of the step that runs; 0 between two."""
        self._begun = 0

    def __enter__(self) -> None:
        self._begun += 1
        self.running = self._begun

    def __exit__(self, *_: object) -> None:
        self.running = 0


def end_with_stuck_step(logger: logging.Logger, what: str, steps: Steps, seconds_max: float) -> None:
    """Have the process end when one of ``steps`` has run for ``seconds_max``; ``what`` names the thread. Call once for a thread."""

    def watch() -> None:
        looks_max = math.ceil(seconds_max / LOOK_SECONDS)
        seen = looks = 0
        while looks < looks_max:
            time.sleep(LOOK_SECONDS)
            running = steps.running
            looks = looks + 1 if running and running == seen else 0
            seen = running
        logger.critical("a step of the %s thread has not ended within %g s; so the process does", what, seconds_max)
        faulthandler.dump_traceback()  # where every thread is
        logging.shutdown()
        os._exit(70)  # EX_SOFTWARE

    threading.Thread(target=watch, name=f"watches {what}", daemon=True).start()
