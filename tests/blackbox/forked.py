"""Servers that begin with everything imported: forks of one process (:mod:`tests.blackbox.forking`), which starts with the first of them.

Most of a server's start is importing torch and transformers, twice. What is forked does all the rest as the command does it; the servers
that most tests share, and those whose start or end is what is tested, are started by the command itself.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.blackbox.forking import NUMBER

IMPORT_SECONDS_MAX = 200.0
"""How long the first server may wait for the imports."""


@cache
def _imported() -> socket.socket:
    """Start the process that is forked; return the socket on which it is asked. It ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = str(Path(__file__).parents[2])
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.blackbox.forking", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
        )
    atexit.register(process.kill)
    return ours


class Forked:
    """``foveate serve`` with these arguments, in a fork. What there is of ``subprocess.Popen`` is as it is there."""

    def __init__(self, arguments: Sequence[str], *, output: int, errors: int, environment: Mapping[str, str]) -> None:
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.returncode: int | None = None
        asked = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        with theirs:
            socket.send_fds(_imported(), [asked], [theirs.fileno(), output, errors])
        self._told.settimeout(IMPORT_SECONDS_MAX)
        (self.pid,) = NUMBER.unpack(self._told.recv(NUMBER.size))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                (self.returncode,) = NUMBER.unpack(self._told.recv(NUMBER.size))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("foveate serve", timeout or 0) from None
            self._told.close()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
