"""Foveate's own log: readable lines by default, by setting one JSON object a line; to standard error.

Standard output belongs to the request log. Third parties' loggers (uvicorn, asyncio, aiohttp, transformers) pass
through the same processors, so every line has one shape and passes the same net (:mod:`foveate.observe.redact`).
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from foveate.observe.redact import redact

Level = Literal["debug", "info", "warning", "error"]
_LEVELS: Final[dict[Level, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(*, json: bool = False, level: Level = "info", stream: TextIO | None = None) -> None:
    """Set up logging for this process. Calling it again replaces what was set up before."""
    stream = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redact_event,
    ]
    colors = not json and stream.isatty()
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact_event, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    # uvicorn tells of its own start and end at info; the server says both itself, when they are true.
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if level == "debug" else max(_LEVELS[level], logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> FilteringBoundLogger:
    """Return the logger of a module: ``get_logger(__name__)``.

    Events are short sentences, facts are keyword arguments.
    """
    return cast(FilteringBoundLogger, structlog.stdlib.get_logger(name))


def redact_event(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Redact every value of a log event, the message and a formatted exception included (a structlog processor)."""
    return {key: value if key.startswith("_") else _redacted(key, value) for key, value in event.items()}


def _redacted(key: str, value: Any) -> Any:
    # An exception not yet formatted keeps its type: the formatter turns it into text, which passes here again.
    return value if key == "exc_info" else redact(value)
