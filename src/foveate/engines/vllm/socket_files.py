"""Where vLLM's processes meet: socket files in the temporary directory, which vLLM leaves there when it is ended at once.

Each engine process has a directory of its own for them, and holds a lock on it for as long as it or a process forked from it lives. Whoever
comes next removes those that nobody holds any more: whatever ended their owners, nothing is left for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "foveate-vllm-"
"""Short: the path of a socket has 107 bytes (unix(7)), and vLLM's file names take 36."""

_TRIES: Final = 8
"""Another start may remove a directory between its making and its locking; eight in a row do not do that by chance."""


class SocketFiles:
    """A directory for sockets, of this user alone. Whoever makes one removes what others have left."""

    def __init__(self, parent: Path) -> None:
        """Raises OSError when ``parent`` cannot be written."""
        _remove_left(parent)
        for _ in range(_TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            with contextlib.suppress(FileNotFoundError):
                self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                if self.path.is_dir():
                    return
                os.close(self._fd)
        raise OSError(f"no directory for sockets lasts in {parent}")

    def remove(self) -> None:
        """Remove the directory. Connections that are open stay so."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def _remove_left(parent: Path) -> None:
    """Remove this user's directories that no living process holds."""
    for left in parent.glob(f"{_PREFIX}*"):
        try:
            fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            # Another user's, or removed by another start meanwhile.
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(fd)
