"""The process that workers are forked from: it imports the heavy modules once, so that a worker starts in milliseconds.

It has one thread, runs no numerical code and never opens a device, so a fork of it is safe. On the control socket it
is sent, for each worker, that worker's end of its channel and of its sentinel. On the sentinel it answers with the
process (pid and pidfd) and later with the wait status. It ends when the control socket ends, and with the gateway.

multiprocessing's forkserver is not used: it leaves an unnamed resource-tracker process beside it, runs the main module
again in every child, and starts children by blocking calls.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from typing import NamedTuple

from setproctitle import setproctitle

from foveate.runtime.arena import ArenaView
from foveate.runtime.local import bootstrap

NUMBER = struct.Struct("<q")
"""What a sentinel carries: the pid, then the wait status."""


class _Child(NamedTuple):
    pid: int
    pidfd: int
    sentinel: socket.socket


def main(argument: str) -> None:
    """Serve until the gateway is gone. ``argument`` is JSON made by :mod:`foveate.runtime.local.launcher`."""
    config = json.loads(argument)
    bootstrap.die_with_parent(config["parent_pid"])
    setproctitle("foveate: forkserver")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=config["control_fd"])
    for name in config["preload"]:
        try:
            importlib.import_module(name)
        except Exception:
            # The worker that needs it will fail for the same reason and say so to its owner; others may do without.
            traceback.print_exc()
    # What exists now lives for ever: keep the collector from writing to its pages, which the workers share.
    gc.collect()
    gc.freeze()
    _serve(control, config["arena_fd"], config["arena_bytes"])


def _serve(control: socket.socket, arena_fd: int, arena_bytes: int) -> None:
    children: dict[int, _Child] = {}
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not control:
                selector.unregister(key.fileobj)
                _reap(children.pop(key.fd))
                continue
            message, fds, _, _ = socket.recv_fds(control, 1, 2)
            if not message:
                return
            if len(fds) != 2:
                # No descriptor was free for them here. Closing what came tells the gateway that there will be no worker.
                for fd in fds:
                    os.close(fd)
                continue
            channel, sentinel = (socket.socket(fileno=fd) for fd in fds)
            parent_pid = os.getpid()
            try:
                pid = os.fork()
            except OSError:
                traceback.print_exc()
                channel.close()
                sentinel.close()
                continue
            if pid == 0:
                selector.close()
                _close_inherited(control, sentinel, children)
                _become_worker(channel, arena_fd, arena_bytes, parent_pid)
            channel.close()
            child = _Child(pid, os.pidfd_open(pid), sentinel)
            children[child.pidfd] = child
            selector.register(child.pidfd, selectors.EVENT_READ)
            _tell(child, pid, [child.pidfd])


def _become_worker(channel: socket.socket, arena_fd: int, arena_bytes: int, parent_pid: int) -> None:
    code = 1
    try:
        code = bootstrap.run(channel, ArenaView(arena_fd, arena_bytes), parent_pid)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Not sys.exit: what the forkserver registered for its own exit is not the worker's to run, and no thread may
        # delay the end.
        os._exit(code)


def _close_inherited(control: socket.socket, sentinel: socket.socket, children: dict[int, _Child]) -> None:
    """Close what belongs to the forkserver. A sentinel held here would hide the end of a sibling."""
    control.close()
    sentinel.close()
    for child in children.values():
        os.close(child.pidfd)
        child.sentinel.close()


def _reap(child: _Child) -> None:
    _, status = os.waitpid(child.pid, 0)
    _tell(child, status, [])
    child.sentinel.close()
    os.close(child.pidfd)


def _tell(child: _Child, number: int, fds: list[int]) -> None:
    # Nobody listens when the gateway gave this worker up; its channel has ended too, so the worker ends by itself.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(child.sentinel, [NUMBER.pack(number)], fds)
