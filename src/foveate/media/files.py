"""Media from local files beneath one configured directory, read off the event loop.

The kernel resolves the name with ``RESOLVE_BENEATH``: links may lead to other places beneath the directory, never out of
it. Where the kernel cannot (before Linux 5.6, some sandboxes), each step is opened by itself and no link is followed.
What was opened, not its name, is checked to be a regular file. Does not cover: which names may be asked for
(:mod:`foveate.media.policy`), the size cap (the sink's), hard links and mounts, which are the operator's doing.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final

from foveate.core.errors import FetchFailed, FetchRejected, UrlRefused

READ_BYTES: Final = 256 * 1024
_OPENAT2: Final = 437
"""The system call's number, the same on every architecture that it was added to."""

_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_BENEATH: Final = 0x08
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Non-blocking, so that opening a FIFO does not wait for its other end."""

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class _Handle:
    """Whoever waits may leave while a thread opens or reads: the descriptor is closed by whoever comes last."""

    def __init__(self, root: str, path: str) -> None:
        self._root, self._path = root, path
        self._lock = threading.Lock()
        self._descriptor = -1
        self._closed = False

    def open(self) -> int:
        """Open and check; return the size. Raises OSError."""
        with self._lock:
            if self._closed:
                raise OSError(errno.ECANCELED, "closed before it was opened")
            descriptor = open_beneath(self._root, self._path)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                os.close(descriptor)
                raise OSError(errno.EISDIR, "not a regular file")
            self._descriptor = descriptor
            return status.st_size

    def read(self) -> bytes:
        """Return the next bytes, none at the end. Raises OSError."""
        with self._lock:
            return os.read(self._descriptor, READ_BYTES)

    def close(self) -> None:
        """Close it, after what a thread does with it now."""
        with self._lock:
            self._closed = True
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


class LocalFiles:
    """Reads files in threads of its own: a directory on a hanging network drive must not use up the event loop's."""

    def __init__(self, *, threads: int = 8) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="media-file")

    @asynccontextmanager
    async def open(self, root: str, path: str) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """Open ``path`` beneath ``root``; yield its size and its bytes, piece by piece.

        Raises UrlRefused when it leads out or is no regular file, FetchRejected when there is none that may be read,
        FetchFailed when reading fails.
        """
        loop = asyncio.get_running_loop()
        handle = _Handle(root, path)
        try:
            try:
                size = await loop.run_in_executor(self._executor, handle.open)
            except OSError as error:
                raise _refusal(error, path) from None
            yield size, self._pieces(handle, path)
        finally:
            self._executor.submit(handle.close)

    async def aclose(self) -> None:
        """Let running reads end by themselves."""
        self._executor.shutdown(wait=False)

    async def _pieces(self, handle: _Handle, path: str) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while True:
            try:
                piece = await loop.run_in_executor(self._executor, handle.read)
            except OSError as error:
                raise FetchFailed("The media file could not be read.", detail=f"{path}: {error.strerror}") from None
            if not piece:
                return
            yield piece


def open_beneath(root: str, path: str) -> int:
    """Open the file that ``path`` names beneath ``root`` for reading and return its descriptor. Raises OSError."""
    base = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    relative = os.fsencode(path.strip("/"))
    try:
        try:
            return _open_resolving(base, relative)
        except OSError as error:
            # EPERM is what sandboxes say that do not know the call.
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
        return _open_by_steps(base, relative)
    finally:
        os.close(base)


def _open_resolving(base: int, path: bytes) -> int:
    how = struct.pack("=QQQ", _FLAGS, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    for _ in range(8):
        descriptor = int(_syscall(_OPENAT2, base, path, how, len(how)))
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: something was renamed meanwhile
            break
    raise OSError(number, os.strerror(number))


def _open_by_steps(base: int, path: bytes) -> int:
    *directories, name = path.split(b"/")
    if b".." in (*directories, name):
        raise OSError(errno.EXDEV, "a step up")
    at = os.dup(base)
    try:
        for step in directories:
            below = os.open(step, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)


def _refusal(error: OSError, path: str) -> UrlRefused | FetchRejected | FetchFailed:
    detail = f"file://{path}: {error.strerror}"
    if error.errno in (errno.EXDEV, errno.ELOOP):
        return UrlRefused("The file URL leads out of the directory that may be read (rule: file root).", detail=detail)
    if error.errno in (errno.EISDIR, errno.ENXIO, errno.ENODEV):
        return UrlRefused("The file URL does not name a regular file (rule: file).", detail=detail)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
        return FetchRejected("The media file does not exist, or may not be read by this server.", detail=detail)
    return FetchFailed("The media file could not be read.", detail=detail)
