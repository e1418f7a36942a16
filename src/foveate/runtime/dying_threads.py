"""A thread that ends unexpectedly takes its process with it: the gateway then starts another, instead of waiting for ever for answers."""

from __future__ import annotations

import logging
import os
import threading


def end_with_any_thread(logger: logging.Logger) -> None:
    """Have it so in this process from now on."""

    def end(failed: threading.ExceptHookArgs) -> None:
        error = failed.exc_value
        if error is None or isinstance(error, SystemExit):
            return
        name = failed.thread.name if failed.thread is not None else "?"
        logger.critical("the %s thread ended; so does the process", name, exc_info=error)
        logging.shutdown()
        os._exit(70)  # EX_SOFTWARE; the main thread waits in a read that nothing else would end

    threading.excepthook = end
