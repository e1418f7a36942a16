"""The directory in which the encoder cache outlives its process: whose it is, who has it now, and how its one file is replaced.

It belongs to one server at a time (a lock that the kernel takes back with the process), may be written to by its owner alone, and holds
``encoder.kept``, ``encoder.kept.new`` while that is written, and ``lock``. Whatever else lies there is left alone. The file is replaced in
one step, so a process that is killed leaves the old one or none. Called in threads.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from foveate.caches.kept_file import KeptFault
from foveate.core.errors import StartupError

FILE: Final = "encoder.kept"
_NEW: Final = f"{FILE}.new"
_LOCK: Final = "lock"
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_SETTING: Final = "cache.encoder_keep_dir"


class KeepDirectory:
    """A directory that is ours, from :meth:`__init__` to :meth:`close`. All but these raise OSError, as files do.

    ``bytes_max`` is what may lie there, ``seconds_max`` how long writing it may take, and reading it. ``made_by`` names what embeddings
    depend on beside their key: software, device.
    """

    def __init__(self, path: Path, *, bytes_max: int, seconds_max: float, made_by: str) -> None:
        """Make the directory if it is not there, and lock it. Raises StartupError when it is not ours alone or is in use."""
        self.path = path
        self.bytes_max = bytes_max
        self.seconds_max = seconds_max
        self.made_by = made_by
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._check()
                self._lock = self._locked()
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise StartupError(
                f"The directory {str(path)!r} ({_SETTING}) cannot be used: {os.strerror(error.errno or 0)}."
            ) from error

    def open(self) -> int | None:
        """Return a descriptor of the file, to be closed by the caller; ``None`` when there is none. Raises KeptFault: not ours."""
        try:
            fd = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
            os.close(fd)
            raise KeptFault("foreign")
        return fd

    @property
    def bytes(self) -> int:
        """Bytes of the file that is there."""
        try:
            return os.stat(FILE, dir_fd=self._fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def begin(self) -> BinaryIO:
        """Return a new file, to be read and written by its owner alone, which :meth:`commit` puts in the old one's place."""
        self._unlink(_NEW)
        fd = os.open(_NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=self._fd)
        return os.fdopen(fd, "wb")

    def commit(self) -> None:
        """Put the new file, whose bytes are on the disk already, in the old one's place."""
        os.rename(_NEW, FILE, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.fsync(self._fd)

    def abandon(self) -> None:
        """Remove a new file that was not committed, this process's or a dead one's."""
        self._unlink(_NEW)

    def forget(self) -> bool:
        """Remove the file; return whether there was one."""
        return self._unlink(FILE)

    def close(self) -> None:
        """Let another server have it."""
        os.close(self._lock)
        os.close(self._fd)

    def _check(self) -> None:
        found = os.fstat(self._fd)
        if found.st_uid != os.geteuid():
            raise StartupError(
                f"The directory {str(self.path)!r} ({_SETTING}) belongs to another user. Name one of this user's own, or one that does not "
                f"exist yet."
            )
        if found.st_mode & _OTHERS_WRITE:
            raise StartupError(
                f"Others than its owner may write to the directory {str(self.path)!r} ({_SETTING}): what lies there cannot be trusted. "
                f"Set its mode to 0700."
            )

    def _locked(self) -> int:
        fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if not isinstance(error, BlockingIOError):
                raise
            raise StartupError(
                f"The directory {str(self.path)!r} ({_SETTING}) is in use by another server. Give each its own, or wait for its end."
            ) from error
        return fd

    def _unlink(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True
