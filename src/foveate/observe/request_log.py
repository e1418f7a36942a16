"""The request log: one JSON line a request, for machines.

Lines are encoded and written by one thread behind a bounded queue, so the event loop never waits for a disk or a pipe.
When the writer cannot keep up, or fails, lines are dropped and counted; the loss is reported in Foveate's own log.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Final

from foveate.core import clock
from foveate.observe.line_file import LineFile
from foveate.observe.logging import get_logger
from foveate.observe.records import LedgerRecord
from foveate.observe.request_line import encoded

_BATCH_MAX: Final = 256
_GATHER_SECONDS: Final = 0.05
"""A line is written so much later, that those of a busy server are written together: a thread woken for each request took the interpreter
from the event loop as often."""

_log = get_logger(__name__)


class RequestLog:
    """Writes lines to a file (appended, rotated) or to standard output.

    The file and its ``keep_files`` predecessors (``name.1`` is the newest) hold at most ``rotate_bytes`` each.
    Use as a context, or :meth:`start` and :meth:`close` it.
    """

    def __init__(
        self, path: Path | None = None, *, lines_max: int = 8192, rotate_bytes: int = 64 << 20, keep_files: int = 8
    ) -> None:
        self._file = LineFile(path, bytes_max=rotate_bytes, keep_files=keep_files)
        self._queue: queue.SimpleQueue[tuple[LedgerRecord, float] | None] = queue.SimpleQueue()
        self._lines_max = lines_max
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._refused = 0
        self._failed = 0

    @property
    def dropped(self) -> int:
        """Lines lost since the start."""
        return self._refused + self._failed

    def start(self) -> None:
        """Open the file and start the writer. Raises OSError when the file cannot be opened."""
        self._file.open()
        self._thread.start()

    def write(self, record: LedgerRecord) -> None:
        """Hand a record to the writer; drop and count it when the queue is full. Never waits."""
        if self._queue.qsize() >= self._lines_max:
            self._refused += 1
        else:
            self._queue.put((record, clock.wall_at(record.ended_at)))

    def close(self, seconds_max: float = 5.0) -> None:
        """Write what is queued and end the writer, within about ``seconds_max``.

        Blocks: from the event loop, use a thread.
        """
        if not self._thread.is_alive():
            return
        self._closing.set()
        self._queue.put(None)
        self._thread.join(seconds_max)
        if self._thread.is_alive():
            _log.error("the request log was not written in time", lines=self._queue.qsize())
        else:
            self._file.close()

    def __enter__(self) -> RequestLog:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self) -> None:
        told = 0
        more = True
        while more:
            batch, more = self._batch()
            if batch:
                self._put(batch)
            if self.dropped > told:
                _log.warning("request-log lines were dropped", lines=self.dropped - told, total=self.dropped)
                told = self.dropped

    def _batch(self) -> tuple[list[tuple[LedgerRecord, float]], bool]:
        """Wait for a record and take those behind it, too; false when the end has come."""
        batch: list[tuple[LedgerRecord, float]] = []
        entry = self._queue.get()
        if self._queue.qsize() < _BATCH_MAX:
            self._closing.wait(_GATHER_SECONDS)
        while entry is not None:
            batch.append(entry)
            if len(batch) >= _BATCH_MAX:
                return batch, True
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _put(self, batch: list[tuple[LedgerRecord, float]]) -> None:
        lines = [encoded(record, wall) + b"\n" for record, wall in batch]
        written, error = self._file.append(lines)
        self._failed += len(lines) - written
        if error is not None:
            _log.error("the request log could not be written", reason=error.strerror or type(error).__name__)
