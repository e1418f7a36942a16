"""Embeddings handed to vLLM by name: one memory file for each picture, which its workers map instead of being sent copies.

The engine's process copies a picture once, out of the arena, whose slot may be another's as soon as a request is cancelled. The files have
no name in any directory, cannot be written again, and go with the process and the last mapping of them: nothing is left after a kill. What
no request uses stays for the next one that asks about the same picture, within bounds.
"""

from __future__ import annotations

import fcntl
import os
import resource
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec
import torch

from foveate.engines.embedding_file import (
    HEADER_BYTES,
    EmbeddingFault,
    EmbeddingHeader,
    Grid,
    digest_of,
    write_file,
)

ENTRIES_MAX: Final = 512
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class _Entry(msgspec.Struct):
    fd: int
    size: int
    rows: int
    grid: Grid
    users: int = 0


class Handover:
    """The files of one engine process. Used by one thread."""

    def __init__(self, *, bytes_max: int) -> None:
        """``bytes_max``: of all files. They are also bounded by a quarter of the descriptors that the process may have."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self._entries_max = min(ENTRIES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        """Files there are."""
        return len(self._entries)

    def held(self, name: str, rows: int, grid: Grid) -> int | None:
        """Use the file of ``name``, if there is one of this shape; return its descriptor. To be followed by :meth:`leave`."""
        entry = self._entries.get(name)
        if entry is None or (entry.rows, entry.grid) != (rows, grid):
            return None
        entry.users += 1
        self._entries.move_to_end(name)
        return entry.fd

    def hand(self, name: str, levels: Sequence[torch.Tensor], grid: Grid) -> int | None:
        """Make a file of embeddings that were checked, and use it as :meth:`held` does.

        ``levels``: [rows, hidden] each, DeepStack's behind the main one. None where there is no room, or no file can be made: then they
        have to travel with the request.
        """
        rows = levels[0] if len(levels) == 1 else torch.cat(list(levels), dim=-1)
        header = EmbeddingHeader(
            digest_of(name), str(rows.dtype).removeprefix("torch."), rows.shape[0], rows.shape[1], grid
        )
        data: memoryview = rows.contiguous().view(torch.uint8).numpy().reshape(-1).data
        if name in self._entries or not self._room(HEADER_BYTES + len(data)):
            return None
        try:
            fd = _written(header, data)
        except (OSError, EmbeddingFault):
            return None
        self._entries[name] = _Entry(fd, HEADER_BYTES + len(data), header.rows, grid, users=1)
        self.bytes += HEADER_BYTES + len(data)
        return fd

    def leave(self, name: str, *, kept: bool) -> None:
        """A use has ended. ``kept``: the name may be met again."""
        entry = self._entries[name]
        entry.users -= 1
        if not kept and not entry.users:
            self._drop(name)

    def _room(self, size: int) -> bool:
        """Make room by dropping what was not used for longest. Returns whether there is."""
        if size > self.bytes_max:
            return False
        idle = [name for name, entry in self._entries.items() if not entry.users]
        for name in idle:
            if self._fits(size):
                break
            self._drop(name)
        return self._fits(size)

    def _fits(self, size: int) -> bool:
        return self.bytes + size <= self.bytes_max and len(self._entries) < self._entries_max

    def _drop(self, name: str) -> None:
        entry = self._entries.pop(name)
        self.bytes -= entry.size
        os.close(entry.fd)


def _written(header: EmbeddingHeader, data: memoryview) -> int:
    fd = os.memfd_create("foveate-embeddings", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        write_file(fd, header, data)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
