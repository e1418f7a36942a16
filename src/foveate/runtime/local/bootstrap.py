"""What runs in a freshly forked worker before and after its entry point.

Ties the process to its parent, names it, bounds its threads and memory, runs the entry and turns its end into an exit
code. Does not cover: what the worker does.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from setproctitle import setproctitle

from foveate.core import clock
from foveate.core.errors import StartupError
from foveate.runtime.arena import ArenaView
from foveate.runtime.local.channel import GatewayGone, WorkerChannel
from foveate.runtime.port import ArenaAccess, Ready, StartFailed, WorkerContext, WorkerSpec

_PR_SET_PDEATHSIG = 1
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def thread_environment(threads: int) -> dict[str, str]:
    """Return the environment variables that bound the threads of numerical libraries loaded from now on."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; end at once when it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(0)


def tie_forks() -> None:
    """Have every process that is forked from here, and from those, end with its parent, from its first instruction on.

    "Parent" is to the kernel the thread that forked: fork from one that lasts.
    """
    parent_pid = os.getpid()

    def tie() -> None:
        nonlocal parent_pid
        die_with_parent(parent_pid)
        parent_pid = os.getpid()

    os.register_at_fork(after_in_child=tie)


class LocalContext:
    """Implements :class:`foveate.runtime.port.WorkerContext`."""

    def __init__(self, spec: WorkerSpec, arena: ArenaView, channel: WorkerChannel) -> None:
        self.spec = spec
        self.arena: ArenaAccess = arena
        self.ready = False
        self._channel = channel

    def receive(self, timeout_seconds: float | None = None) -> Any | None:
        """See the port. One thread of the worker receives."""
        return self._channel.receive(timeout_seconds)

    def pending(self) -> bool:
        """See the port. For the thread that receives."""
        return self._channel.pending()

    def send(self, message: Any) -> None:
        """See the port. Raises GatewayGone, which ends the worker quietly when it reaches the top."""
        if isinstance(message, Ready):
            # Before it is sent: from then on untrusted work may arrive.
            _limit_memory(self.spec.memory_bytes_max)
            self.ready = True
        self._channel.send(message)


def run(connection: socket.socket, arena: ArenaView, parent_pid: int) -> int:
    """Be a worker until its entry point returns. Returns the exit code; never raises."""
    try:
        die_with_parent(parent_pid)
        channel = WorkerChannel(connection)
        packed = channel.receive_frame()
        if packed is None:
            return 0  # the gateway gave up before this process existed
        spec: WorkerSpec = pickle.loads(packed)
        clock.follow(spec.clock_ahead)
        setproctitle(spec.title)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.enable()
        if spec.cpus:
            os.sched_setaffinity(0, spec.cpus)
        _limit_threads(spec.threads)
        channel.expect(spec.receives)
        return _run_entry(LocalContext(spec, arena, channel))
    except BaseException:
        traceback.print_exc()
        return 1


def _run_entry(context: LocalContext) -> int:
    try:
        _resolve(context.spec.entry)(context)
    except StartupError as error:
        if context.ready:
            raise
        context.send(StartFailed(error.record()))
        return 1
    except GatewayGone:
        return 0
    return 0


def _resolve(entry: str) -> Callable[[WorkerContext], None]:
    module, _, function = entry.partition(":")
    found: Callable[[WorkerContext], None] = getattr(importlib.import_module(module), function)
    return found


def _limit_threads(threads: int) -> None:
    os.environ.update(thread_environment(threads))
    # A torch that the forkserver imported has read its environment already. Looked up, not imported: a worker without
    # it stays without.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _limit_memory(bytes_max: int) -> None:
    """Let the process map ``bytes_max`` more private writable memory than it has now (0: no limit).

    RLIMIT_DATA counts exactly that (heap, anonymous and private file mappings, thread stacks), so neither the arena
    nor mapped libraries and weights count, as they would under RLIMIT_AS.
    """
    if bytes_max == 0:
        return
    limit = _private_bytes() + bytes_max
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _private_bytes() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")
