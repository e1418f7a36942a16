"""The process that :mod:`tests.forked` asks for forks: it has imported what a server's gateway and its workers import.

It makes two kinds. A server goes on as ``foveate serve`` does from its arguments on; a process between waits for its end and tells of it.
A forkserver is what one becomes that has imported the same; a server has one made beforehand.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

from setproctitle import setproctitle

NUMBER = struct.Struct("<q")
"""What is told: a process id, then, of a server, what it ended with, as ``subprocess`` counts it."""
CLONE_PARENT = 0x00008000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
"""Linux: sched.h and unistd.h."""


class Child:
    """What the launcher of forkservers uses of ``subprocess.Popen``, of a child of this process that was made otherwise."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

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


def main() -> None:
    """Make what is asked for on the socket whose descriptor is the argument, until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    setproctitle("tests: forking")  # now, as it does not find where the title lies once the environment has changed
    _import()
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1 << 20, 4)
        if not message:
            return
        asked = json.loads(message)
        if "forkserver" in asked:
            _forkserver_beside(control, *asked["forkserver"], *fds)
        elif os.fork() == 0:
            control.close()
            _server(asked, *fds)
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


# --------------------------------------------------------------------------------------------------------------- servers


def _server(asked: dict[str, Any], told_fd: int, output: int, errors: int) -> NoReturn:
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
    _take(asked["environment"])
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
        message, fds, _, _ = socket.recv_fds(theirs, 1 << 20, 2)
        theirs.close()
        if not message:  # the server has ended without one
            os._exit(0)
        _become_forkserver(*json.loads(message), *fds, 2)
    theirs.close()

    def start(command: list[str], *, pass_fds: tuple[int, int], env: dict[str, str], **_: Any) -> Child:
        launcher.subprocess = subprocess
        with ours:
            socket.send_fds(ours, [json.dumps([command[-1], env]).encode()], pass_fds)
        return Child(pid)

    launcher.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]


# ----------------------------------------------------------------------------------------------------------- forkservers


def _forkserver_beside(
    control: socket.socket, argument: str, environment: Mapping[str, str], told: int, *fds: int
) -> None:
    """Fork a forkserver that is a child of who asks, as a forkserver ends with its parent."""
    pid = _fork_beside()
    if pid == 0:
        control.close()
        os.close(told)
        _become_forkserver(argument, environment, *fds)
    os.write(told, NUMBER.pack(pid))


def _fork_beside() -> int:
    """As ``os.fork``, but the child is one of our parent."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    given = (SYS_CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    pid = libc.syscall(*map(ctypes.c_long, given))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return int(pid)


def _become_forkserver(
    argument: str, environment: Mapping[str, str], control: int, arena: int, errors: int
) -> NoReturn:
    """Go on as the program does that the launcher starts."""
    from foveate.runtime.local import forkserver

    code = 1
    try:
        os.setsid()
        for become in (1, 2):
            os.dup2(errors, become)
        if errors > 2:
            os.close(errors)
        _take(environment)
        config = json.loads(argument)
        sys.path[:] = config["sys_path"]
        forkserver.main(json.dumps(config | {"control_fd": control, "arena_fd": arena}))
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _take(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


if __name__ == "__main__":
    main()
