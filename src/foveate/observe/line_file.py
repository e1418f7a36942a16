"""A file of lines that is appended to and rotated, so that it and its predecessors never take more than a known room.

``log.jsonl`` is written; when it is full it becomes ``log.jsonl.1``, that one ``log.jsonl.2``, and the oldest is removed. Not thread-safe.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_STANDARD_OUTPUT: Final = 1


def rotated(path: Path, number: int) -> Path:
    """Return the name of the ``number``-th predecessor, 1 being the newest; 0 is the file itself."""
    return path.with_name(f"{path.name}.{number}") if number else path


class LineFile:
    """``path`` (None: standard output) of at most ``bytes_max`` bytes, with ``keep_files`` predecessors of the same size.

    What is not a regular file (a pipe, a device) is never rotated. A file that somebody else moved away is made anew.
    """

    def __init__(self, path: Path | None, *, bytes_max: int, keep_files: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._keep_files = keep_files
        self._descriptor = -1
        self._torn = False

    def open(self) -> None:
        """Open for appending. Raises OSError."""
        # Not through a buffered file: that would keep lines it failed to write, and write them later as torn ones.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.dup(_STANDARD_OUTPUT) if self._path is None else os.open(self._path, flags, 0o644)
        self._torn = self._ends_torn()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def append(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Write lines, each with its end; return how many were written whole, and what stopped it.

        Lines that there is no room for because the file cannot be rotated are not written: the disk stays bounded.
        """
        whole = 0
        try:
            self._follow()
            for part in self._parts(lines):
                whole += self._write(part)
        except _Stopped as stopped:
            return whole + stopped.whole, stopped.reason
        except OSError as error:
            return whole, error
        return whole, None

    def _ends_torn(self) -> bool:
        """Whether the file that is there was left in the middle of a line, by a kill or a full disk."""
        if self._path is None or not self._regular() or not os.fstat(self._descriptor).st_size:
            return False
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def _regular(self) -> bool:
        return self._path is not None and stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    def _follow(self) -> None:
        """Open the file anew if its name does not lead to it any more. Raises OSError."""
        if self._descriptor >= 0 and (not self._regular() or self._named()):
            return
        self.close()
        self.open()

    def _named(self) -> bool:
        assert self._path is not None
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _parts(self, lines: Sequence[bytes]) -> Iterator[list[bytes]]:
        """Yield lines that fit what is left of the file, rotating between. Raises OSError."""
        if not self._regular():
            yield list(lines)
            return
        part: list[bytes] = []
        size = os.fstat(self._descriptor).st_size
        for line in lines:
            if size and size + len(line) > self._bytes_max:
                if part:
                    yield part
                part, size = [], 0
                self._rotate()
            part.append(line)
            size += len(line)
        if part:
            yield part

    def _rotate(self) -> None:
        assert self._path is not None
        for number in range(self._keep_files - 1, -1, -1):
            older = rotated(self._path, number)
            if older.exists():
                os.replace(older, rotated(self._path, number + 1))
        if not self._keep_files:
            self._path.unlink()
        self.close()
        self.open()

    def _write(self, lines: list[bytes]) -> int:
        data = b"".join(lines)
        if self._torn:
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            whole = data[:written].count(b"\n") - self._torn if written else 0
            self._torn = data[written - 1 : written] != b"\n" if written else self._torn
            raise _Stopped(whole, error) from error
        self._torn = False
        return len(lines)


class _Stopped(Exception):
    """Writing stopped after ``whole`` lines."""

    def __init__(self, whole: int, reason: OSError) -> None:
        self.whole = whole
        self.reason = reason
