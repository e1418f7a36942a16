"""Reads a request log back: the file with its predecessors, oldest line first, whatever state its last line was left in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from foveate.observe.line_file import rotated
from foveate.observe.request_line import RequestLine

PREDECESSORS_MAX: Final = 1000
_READ_MAX: Final = 64 * 1024
"""A line has 2 KiB at most; what is longer is no line of ours and is skipped in pieces of this size."""


class LogReader:
    """Iterate over it once for the lines that could be read. ``damaged`` counts those that could not.

    A line that another version of Foveate wrote is read as far as the fields agree; what it lacks has the field's default.
    """

    def __init__(self, path: Path | None, stream: BinaryIO | None = None) -> None:
        self._path = path
        self._stream = stream
        self._decoder = msgspec.json.Decoder(RequestLine)
        self.read = 0
        self.damaged = 0

    def __iter__(self) -> Iterator[tuple[RequestLine, bytes]]:
        """Yield each line, parsed and as it was written. Raises OSError, FileNotFoundError when there is no file at all."""
        with ExitStack() as scope:
            # All are opened before the first is read: a rotation meanwhile renames them, and none is read twice or missed.
            files = [self._stream] if self._stream is not None else self._open(scope)
            for file in files:
                yield from self._lines(file)

    def _open(self, scope: ExitStack) -> list[BinaryIO]:
        assert self._path is not None
        newest = scope.enter_context(self._path.open("rb"))
        older: list[BinaryIO] = []
        for number in range(1, PREDECESSORS_MAX + 1):
            try:
                older.append(scope.enter_context(rotated(self._path, number).open("rb")))
            except FileNotFoundError:
                break
        return [*reversed(older), newest]

    def _lines(self, file: BinaryIO) -> Iterator[tuple[RequestLine, bytes]]:
        while piece := file.readline(_READ_MAX):
            if len(piece) == _READ_MAX and not piece.endswith(b"\n"):
                self.damaged += 1
                _skip_line(file)
                continue
            raw = piece.rstrip(b"\r\n")
            if not raw.strip():
                continue
            try:
                parsed = self._decoder.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self.damaged += 1
                continue
            self.read += 1
            yield parsed, raw


def _skip_line(file: BinaryIO) -> None:
    while (piece := file.readline(_READ_MAX)) and not piece.endswith(b"\n"):
        pass
