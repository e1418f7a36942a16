"""Embeddings in a directory, by name, for servers on this machine: a request only names them, and vLLM maps the file
(:mod:`foveate.engines.vllm.connector`).

The directory belongs to one gateway at a time and holds nothing when that ends, however it ends. A file is checked before it is written,
appears whole under its name, and stays while any request uses it; beyond its bounds the store drops what was not used for longest. Lives
on the event loop; bytes are copied in a thread. Does not cover: what a server does with a file.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
import subprocess
import sys
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from foveate.core.errors import StartupError
from foveate.engines.embedding_file import (
    HEADER_BYTES,
    EmbeddingFault,
    EmbeddingHeader,
    digest_of,
    write_file,
)
from foveate.engines.port import PictureInput, RelayedMedia
from foveate.engines.upstream import sweeper
from foveate.engines.upstream.npy import levels_of
from foveate.runtime.arena import Arena

NAMED_FAMILIES: Final = frozenset(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))
"""Families whose pictures can be named: they have a grid of patches, and vLLM's parsers take no reference without anything in it."""
GRID: Final = "image_grid_thw"
ENTRIES_MAX: Final = 16384
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_STOP_SECONDS: Final = 5.0


class _Entry(msgspec.Struct):
    file: str
    size: int
    users: int = 0


class EmbeddingStore:
    """The directory of one gateway, from :meth:`open` to :meth:`close`."""

    def __init__(self, path: Path, arena: Arena, *, bytes_max: int) -> None:
        """``bytes_max``: of all files."""
        self.path = path
        self.bytes_max = bytes_max
        self.bytes = 0
        self._arena = arena
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._writing = asyncio.Lock()
        self._copying: set[asyncio.Future[None]] = set()
        self._numbers = itertools.count()
        self._directory = -1
        self._lock = -1
        self._sweeper: subprocess.Popen[bytes] | None = None

    def __len__(self) -> int:
        """Files there are."""
        return len(self._entries)

    def open(self) -> None:
        """Take the directory, making it where it is not there, and remove what an earlier gateway left. Raises StartupError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            found = os.fstat(self._directory)
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
                raise StartupError(
                    f"The directory {str(self.path)!r} (upstream.store) must be this user's own, with mode 0700."
                )
            self._lock = sweeper.lock(self._directory)
            sweeper.sweep(self._directory)
            self._sweeper = subprocess.Popen(
                [sys.executable, "-I", "-S", sweeper.__file__, str(self.path)],
                stdin=subprocess.PIPE,
                stdout=2,
                start_new_session=True,  # Ctrl-C reaches the gateway only
            )
        except BlockingIOError:
            raise StartupError(
                f"The directory {str(self.path)!r} (upstream.store) is in use by another server."
            ) from None
        except OSError as error:
            raise StartupError(
                f"The directory {str(self.path)!r} (upstream.store) cannot be used: {os.strerror(error.errno or 0)}."
            ) from error

    async def aclose(self) -> None:
        """Remove every file and let another gateway have the directory. Whoever has mapped one keeps it."""
        if self._copying:
            await asyncio.wait(self._copying)
        if self._lock >= 0:
            sweeper.sweep(self._directory)
            os.close(self._lock)
        if self._directory >= 0:
            os.close(self._directory)
        self._entries.clear()
        self._lock = self._directory = -1
        if self._sweeper is not None:
            assert self._sweeper.stdin is not None
            self._sweeper.stdin.close()
            await asyncio.to_thread(self._sweeper.wait, _STOP_SECONDS)
            self._sweeper = None

    @asynccontextmanager
    async def holding(self, media: Sequence[RelayedMedia]) -> AsyncIterator[bool]:
        """Have the embeddings of these in the store until the block is left; yield whether all are.

        Raises EncodeFailed for embeddings that would kill whoever reads them.
        """
        pictures = {
            one.name: one.embeddings for one in media if one.embeddings is not None and GRID in one.embeddings.meta
        }
        held: list[_Entry] = []
        try:
            if len(pictures) == len({one.name for one in media}):
                for name, picture in pictures.items():
                    entry = await self._there(name, picture)
                    if entry is None:
                        break
                    held.append(entry)
            yield bool(media) and len(held) == len({one.name for one in media})
        finally:
            for entry in held:
                entry.users -= 1

    def forget(self, media: Sequence[RelayedMedia]) -> None:
        """Somebody could not use the files of these: make them anew the next time."""
        for one in media:
            entry = self._entries.get(one.name)
            if entry is not None:
                self._drop(one.name, entry)

    async def _there(self, name: str, picture: PictureInput) -> _Entry | None:
        """Return a picture's file, in use from now on; None where there is no room for it."""
        entry = self._found(name)
        if entry is not None:
            return entry
        async with self._writing:
            entry = self._found(name)  # another request may have written it meanwhile
            return entry if entry is not None else await self._write(name, picture)

    def _found(self, name: str) -> _Entry | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        try:
            os.stat(entry.file, dir_fd=self._directory)
        except FileNotFoundError:  # an operator, or whatever clears temporary directories
            self._drop(name, entry)
            return None
        entry.users += 1
        self._entries.move_to_end(name)
        return entry

    async def _write(self, name: str, picture: PictureInput) -> _Entry | None:
        entry = _Entry(digest_of(name).hex(), HEADER_BYTES + _bytes(picture), users=1)
        if not self._room(entry.size):
            return None
        new = f"{entry.file}.{next(self._numbers)}.new"
        self.bytes += entry.size  # in the books while it is written
        copying = asyncio.get_running_loop().run_in_executor(None, self._copy, name, new, picture)
        self._copying.add(copying)
        copying.add_done_callback(self._copying.discard)
        try:
            await asyncio.shield(copying)
            # Not before: after a cancellation the slot may be another's, and what was copied of it is not to be seen.
            os.rename(new, entry.file, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except BaseException as error:
            self.bytes -= entry.size
            copying.add_done_callback(lambda done: self._discard(new, done))
            if isinstance(error, OSError | EmbeddingFault):
                return None
            raise
        self._entries[name] = entry
        return entry

    def _copy(self, name: str, new: str, picture: PictureInput) -> None:
        """Write a picture's file under a name that nobody looks for. Raises OSError, EmbeddingFault, EncodeFailed."""
        levels = levels_of(picture, self._arena)
        rows = levels[0] if len(levels) == 1 else np.concatenate(levels, axis=1)
        frames, high, wide = picture.meta[GRID]
        data: memoryview = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
        dtype = picture.embeddings.tensors[0].dtype
        header = EmbeddingHeader(
            digest_of(name), dtype, rows.shape[0], rows.shape[1], (frames, high, wide), zlib.crc32(data)
        )
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=self._directory)
        try:
            write_file(fd, header, data)
        finally:
            os.close(fd)

    def _discard(self, new: str, copied: asyncio.Future[None]) -> None:
        """Remove what was copied for nobody."""
        if not copied.cancelled():
            copied.exception()  # retrieved: whoever waited was told, or has gone
        self._unlink(new)

    def _room(self, size: int) -> bool:
        """Make room by dropping what was not used for longest; return whether there is."""
        if size > self.bytes_max:
            return False
        for name, entry in list(self._entries.items()):
            if self._fits(size):
                break
            if not entry.users:
                self._drop(name, entry)
        return self._fits(size)

    def _fits(self, size: int) -> bool:
        return self.bytes + size <= self.bytes_max and len(self._entries) < ENTRIES_MAX

    def _drop(self, name: str, entry: _Entry) -> None:
        del self._entries[name]
        self.bytes -= entry.size
        self._unlink(entry.file)

    def _unlink(self, file: str) -> None:
        if self._directory < 0:
            return  # closed: swept already
        try:
            os.unlink(file, dir_fd=self._directory)
        except FileNotFoundError:
            return


def _bytes(picture: PictureInput) -> int:
    """Bytes of a picture's rows."""
    return sum(int(np.prod(one.shape)) * (4 if one.dtype == "float32" else 2) for one in picture.embeddings.tensors)
