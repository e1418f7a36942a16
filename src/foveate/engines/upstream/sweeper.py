"""A process that does nothing but wait for the gateway's end, and then empties the store that it leaves behind.

A file with a name outlives whoever made it, and a gateway that is killed cannot remove any. This runs as a program of its own with nothing
but the standard library, some milliseconds and megabytes, and ends when its standard input does.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
from typing import Final

LOCK: Final = "lock"
_OURS: Final = re.compile(r"[0-9a-f]{64}(\.\d+\.new)?")


def sweep(directory: int) -> int:
    """Remove every file of ours from a directory, by its descriptor; return how many. Others' files are left alone."""
    found = [name for name in os.listdir(directory) if _OURS.fullmatch(name)]
    for name in found:
        os.unlink(name, dir_fd=directory)
    return len(found)


def lock(directory: int) -> int:
    """Return a descriptor that keeps a directory for one gateway, until it is closed. Raises BlockingIOError: another has it."""
    fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def main(path: str) -> None:
    """Wait, then sweep, unless a new gateway has the directory already."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    while os.read(0, 1):
        pass
    try:
        lock(directory)
    except BlockingIOError:
        return
    sweep(directory)


if __name__ == "__main__":
    main(sys.argv[1])
