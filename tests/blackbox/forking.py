"""The process that :mod:`tests.blackbox.forked` asks for servers: it has imported what a server's gateway and its workers import.

Each server is a fork of it that goes on as ``foveate serve`` does from its arguments on, and has a fork of its own for a forkserver, which
is what one becomes that has imported the same. A process between waits for the server's end and tells of it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import traceback
from types import SimpleNamespace
from typing import Any, NoReturn

NUMBER = struct.Struct("<q")
"""What is told of a server: its process id, then what it ended with, as ``subprocess`` counts it."""


def main() -> None:
    """Serve on the socket whose descriptor is the argument, until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    _import()
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            _fork_server(json.loads(message), *fds)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _import() -> None:
    from foveate.assembly.engines import worker_modules
    from foveate.models.preload import preload_modules
    from foveate.settings import load

    for name in ("foveate.cli.lifecycle", *preload_modules("qwen2_5_vl"), *worker_modules(load({}))):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _fork_server(asked: dict[str, Any], told_fd: int, output: int, errors: int) -> NoReturn:
    """In a process of its own: start the server, wait for its end."""
    told = socket.socket(fileno=told_fd)
    pid = os.fork()
    if pid == 0:
        told.close()
        _serve(asked, output, errors)
    os.close(output)
    os.close(errors)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        told.send(NUMBER.pack(pid))
        _, status = os.waitpid(pid, 0)
        told.send(NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _serve(asked: dict[str, Any], output: int, errors: int) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, become in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (errors, 2)):
        os.dup2(fd, become)
        os.close(fd)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["foveate", "serve", *asked["arguments"]]
    _prepare_forkserver()
    code: Any = 1
    try:
        from foveate.cli.main import run

        run()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _prepare_forkserver() -> None:
    """Let the server's first forkserver be a fork of what it is now; one that replaces it is started as always."""
    from foveate.runtime.local import launcher

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _become_forkserver(theirs)
    theirs.close()

    class Prepared:
        """What the launcher uses of a started process."""

        def __init__(self, command: list[str], *, pass_fds: tuple[int, int], env: dict[str, str], **_: Any) -> None:
            launcher.subprocess = subprocess
            self.pid = pid
            self._code: int | None = None
            with ours:
                socket.send_fds(ours, [json.dumps([command[-1], env]).encode()], pass_fds)

        def poll(self) -> int | None:
            if self._code is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code

        def kill(self) -> None:
            if self.poll() is None:
                os.kill(self.pid, signal.SIGKILL)

        def wait(self) -> int:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self._code

    launcher.subprocess = SimpleNamespace(Popen=Prepared, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]


def _become_forkserver(asked: socket.socket) -> NoReturn:
    from foveate.runtime.local import forkserver

    code = 1
    try:
        message, fds, _, _ = socket.recv_fds(asked, 1 << 20, 2)
        asked.close()
        if message:
            os.setsid()
            os.dup2(2, 1)
            argument, environment = json.loads(message)
            os.environ.clear()
            os.environ.update(environment)
            control, arena = fds
            sys.path[:] = json.loads(argument)["sys_path"]
            forkserver.main(json.dumps(json.loads(argument) | {"control_fd": control, "arena_fd": arena}))
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


if __name__ == "__main__":
    main()
