"""The gateway's handle of the forkserver: starts it, again when it died, and asks it for workers. Never blocks."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from foveate.core.errors import StartupError
from foveate.runtime.arena import Arena
from foveate.runtime.local.bootstrap import thread_environment

_PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])["sys_path"]
from foveate.runtime.local.forkserver import main
main(sys.argv[1])
"""


class ForkServer:
    """One forkserver process and its successors."""

    def __init__(self, arena: Arena, preload: Sequence[str]) -> None:
        """``preload`` names the modules that every worker finds imported; they must start no thread when imported."""
        self._arena = arena
        self._preload = list(preload)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process id, once it was started."""
        return None if self._process is None else self._process.pid

    def launch(self, channel: socket.socket, sentinel: socket.socket) -> None:
        """Ask for a worker that owns copies of these sockets. Raises StartupError when no forkserver can be started."""
        try:
            if self._control is None or self._process is None or self._process.poll() is not None:
                self._start()
            try:
                self._ask(channel, sentinel)
            except (BrokenPipeError, ConnectionResetError):  # it died since
                self._start()
                self._ask(channel, sentinel)
        except OSError as error:
            raise StartupError(f"Cannot start worker processes: {error.strerror}.", detail=repr(error)) from error

    async def close(self) -> None:
        """End the process at once and reap it. What is left of its workers goes with it."""
        process, self._process = self._process, None
        if self._control is not None:
            self._control.close()
            self._control = None
        if process is None:
            return
        process.kill()
        await asyncio.to_thread(process.wait)

    def _ask(self, channel: socket.socket, sentinel: socket.socket) -> None:
        assert self._control is not None
        socket.send_fds(self._control, [b"w"], [channel.fileno(), sentinel.fileno()])

    def _start(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()  # its control socket has ended, so it is dead or about to be
            self._process.wait()
            self._process = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = {
            "control_fd": theirs.fileno(),
            "arena_fd": self._arena.fd,
            "arena_bytes": self._arena.size_bytes,
            "parent_pid": os.getpid(),
            "preload": self._preload,
            "sys_path": sys.path,
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output is the gateway's alone: it may carry the request log
                pass_fds=(theirs.fileno(), self._arena.fd),
                env=_workers_environment(),
                start_new_session=True,  # Ctrl-C reaches the gateway only
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._control = ours


def _workers_environment() -> dict[str, str]:
    """Return our environment without our settings: they may hold API keys, and workers touch what strangers send."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("FOVEATE_")}
    return {**kept, **thread_environment(1)}
