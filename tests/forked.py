"""Servers and forkservers that begin with everything imported: forks of one process (:mod:`tests.forking`), which starts with the first.

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
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foveate.runtime.local import launcher
from tests.forking import NUMBER, Child

IMPORT_SECONDS_MAX = 200.0
"""How long the first may wait for the imports."""


@cache
def _imported() -> socket.socket:
    """Start the process that is forked; return the socket on which it is asked. It ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = str(Path(__file__).parents[1])
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
        )
    atexit.register(process.kill)
    return ours


def _ask(what: Mapping[str, Any], *fds: int) -> tuple[int, socket.socket]:
    """Return the process id of what was made, and where more is told of it."""
    told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(_imported(), [json.dumps(what).encode()], [theirs.fileno(), *fds])
    told.settimeout(IMPORT_SECONDS_MAX)
    (pid,) = NUMBER.unpack(told.recv(NUMBER.size))
    return int(pid), told


class ForkedServer:
    """``foveate serve`` with these arguments. What there is of ``subprocess.Popen`` is as it is there."""

    def __init__(self, arguments: Sequence[str], *, output: int, errors: int, environment: Mapping[str, str]) -> None:
        asked = {"arguments": list(arguments), "environment": dict(environment)}
        self.pid, self._told = _ask(asked, output, errors)
        self.returncode: int | None = None

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


@contextlib.contextmanager
def forked_forkservers() -> Iterator[None]:
    """Within it, forkservers that are to import torch are forks; the others, which have little to import, are started as always."""

    def start(command: list[str], **given: Any) -> Any:
        if "torch" not in json.loads(command[-1])["preload"]:
            return subprocess.Popen(command, **given)
        pid, told = _ask({"forkserver": [command[-1], given["env"]]}, *given["pass_fds"], 2)
        told.close()
        return Child(pid)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launcher, "subprocess", SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL))
        yield
