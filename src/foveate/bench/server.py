"""Start a server for the length of a benchmark, as an operator would: this one, or any other by its command."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

START_SECONDS_MAX = 400.0
STOP_SECONDS_MAX = 60.0
HOST = "127.0.0.1"


class Running(msgspec.Struct, frozen=True):
    """A server that answers."""

    port: int
    model: str
    pid: int

    def metric(self, name: str) -> float:
        """Return the sum of a metric's series now."""
        with urllib.request.urlopen(f"http://{HOST}:{self.port}/metrics", timeout=30) as reply:
            text = reply.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor time of its processes by the kind each calls itself (``media`` of ``foveate: media 0``).

        Those that have ended count for whoever started them (proc(5), stat: whole ticks, mostly 10 ms each).
        """
        ticks: dict[int, int] = {}
        kinds: dict[int, str] = {}
        children: dict[int, list[int]] = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it may end meanwhile
                # After the name, which may hold anything: state, parent, from the twelfth on user and system time, and ended children's.
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                ticks[int(process.name)] = sum(map(int, fields[11:15]))
                children.setdefault(int(fields[1]), []).append(int(process.name))
                title = (process / "cmdline").read_bytes().partition(b"\0")[0].decode()
                kinds[int(process.name)] = title.removeprefix("foveate: ").split(" ")[0]
        spent: dict[str, float] = {}
        pending = [self.pid]
        while pending:
            pid = pending.pop()
            kind = kinds.get(pid, "")
            spent[kind] = spent.get(kind, 0.0) + ticks.get(pid, 0) / os.sysconf("SC_CLK_TCK")
            pending += children.get(pid, ())
        return spent


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(*flags: str) -> Iterator[Running]:
    """Run ``foveate serve`` with the shipped model on a free port; SIGTERM it at the end."""
    port = free_port()
    command = [sys.executable, "-m", "foveate", "serve", "--host", HOST, "--port", str(port)]
    command += ["--log-level", "warning", *(flags if "--log-requests" in flags else ("--log-requests", "off", *flags))]
    with started(command, port, "/ready") as server:
        yield server


@contextlib.contextmanager
def started(command: Sequence[str], port: int, ready: str, **environment: str) -> Iterator[Running]:
    """Run a server that answers on ``port`` with 200 at the path ``ready`` once it takes requests; SIGTERM it at the end."""
    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        _wait_ready(process, port, ready)
        with urllib.request.urlopen(f"http://{HOST}:{port}/v1/models", timeout=30) as reply:
            model = msgspec.json.decode(reply.read())["data"][0]["id"]
        yield Running(port, model, process.pid)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def _wait_ready(process: subprocess.Popen[bytes], port: int, path: str) -> None:
    give_up = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode} before it was ready")
        with (
            contextlib.suppress(OSError),  # not there yet, not ready (503), or slower than the look
            urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=5) as reply,
        ):
            if reply.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the server was not ready after {START_SECONDS_MAX:.0f} s")
