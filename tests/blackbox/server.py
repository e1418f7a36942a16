"""A Foveate server as a user has it: a process started by its command, driven through its socket, ended by a signal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from tests.blackbox.replies import inspect
from tests.forked import ForkedServer

START_SECONDS_MAX = 300.0
STOP_SECONDS_MAX = 60.0
WAIT_SECONDS_MAX = 120.0
COMMAND = (sys.executable, "-m", "foveate", "serve")
HTTP = httpx.Client(verify=False, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
"""For single questions. It keeps no connection open, and has no TLS: reading the certificates would take longer than most answers."""


def environment(**extra: str) -> dict[str, str]:
    """Return an environment without any setting of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOVEATE_")}
    return {**kept, "HF_HUB_OFFLINE": "1", **extra}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(what: str, holds: Callable[[], Any], *, seconds: float = WAIT_SECONDS_MAX) -> Any:
    """Return the first true value of ``holds``; fail, naming what was waited for, if there is none in time."""
    until = time.monotonic() + seconds
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"waited {seconds:.0f} s in vain for: {what}")
        time.sleep(0.05)


def title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


class Server:
    """One running server. ``stop`` also checks what every stop must show: exit code 0 and nothing left behind."""

    def __init__(self, directory: Path, *flags: str, ready: bool = True, forked: bool = False, **env: str) -> None:
        """``forked``: not by the command, but as :mod:`tests.forked` says, which is much quicker."""
        directory.mkdir(parents=True, exist_ok=True)
        self.key = ""
        """What its clients send; empty: nothing."""
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.request_log = directory / "requests.jsonl"
        self.server_log = directory / "server.log"
        arguments = ("--host", "127.0.0.1", "--port", str(self.port), "--log-requests", str(self.request_log), *flags)
        self.process: subprocess.Popen[bytes] | ForkedServer
        with self.server_log.open("wb") as log:
            if forked:
                fd = log.fileno()
                self.process = ForkedServer(arguments, output=fd, errors=fd, environment=environment(**env))
            else:
                self.process = subprocess.Popen(
                    [*COMMAND, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(**env),
                    start_new_session=True,
                )
        self._seen: dict[int, psutil.Process] = {}
        if ready:
            try:
                self.wait_ready()
            except BaseException:
                self.kill_all()
                raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def ready(self) -> bool:
        """Return whether /ready says 200. Fails when the process has ended by itself."""
        assert self.process.poll() is None, (
            f"the server ended with {self.process.returncode}:\n{self.log_text()[-3000:]}"
        )
        try:
            return HTTP.get(f"{self.base_url}/ready", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def wait_ready(self) -> None:
        try:
            eventually("the server to be ready", self.ready, seconds=START_SECONDS_MAX)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_text()[-3000:]}") from None
        self.processes()

    def log_text(self) -> str:
        return self.server_log.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """Return every live process of this server: its descendants, and whatever else is in its session."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid:
                    found[process.pid] = process
            except ProcessLookupError:
                continue
        try:
            parent = psutil.Process(self.pid)
            found |= {process.pid: process for process in (parent, *parent.children(recursive=True))}
        except psutil.NoSuchProcess:
            pass
        self._seen |= found
        return [process for process in found.values() if _alive(process)]

    def titled(self, wanted: str) -> list[psutil.Process]:
        """Return the live processes whose title is exactly ``wanted``."""
        return [process for process in self.processes() if title(process) == wanted]

    def kill(self, wanted: str) -> int:
        """Kill -9 the one process with this title; return its process id."""
        (process,) = eventually(f"one process titled {wanted!r}", lambda: self.titled(wanted))
        process.kill()
        return int(process.pid)

    def left_behind(self) -> list[str]:
        """Return what is still alive of all processes ever seen of this server."""
        self.processes()
        return [f"{process.pid} {title(process)}" for process in self._seen.values() if _alive(process)]

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Signal the end; assert exit code 0 and that no process of the server is left."""
        self.processes()
        if self.process.poll() is None:
            self.send_signal(number)
        self.assert_ended(0)

    def assert_ended(self, code: int | None) -> None:
        """Wait for the end; ``code`` None allows any exit code."""
        try:
            got = self.process.wait(STOP_SECONDS_MAX)
            eventually("all processes of the server to end", lambda: not self.left_behind(), seconds=15)
        except (subprocess.TimeoutExpired, AssertionError) as error:
            left = self.left_behind()
            self.kill_all()
            raise AssertionError(f"{error}; left: {left}\n{self.log_text()[-3000:]}") from None
        assert code is None or got == code, f"exit code {got}\n{self.log_text()[-3000:]}"

    def kill_all(self) -> None:
        """Clean up after a failed test: end everything that this server started."""
        self.processes()
        for process in self._seen.values():
            if _alive(process):
                process.kill()
        self.process.wait(STOP_SECONDS_MAX)

    def client(self, *, seconds: float = 60) -> httpx.Client:
        return httpx.Client(
            base_url=self.base_url,
            timeout=seconds,
            verify=False,
            event_hooks={"response": [inspect]},
            headers={"x-api-key": self.key} if self.key else {},
        )

    def metrics(self) -> Metrics:
        return Metrics(HTTP.get(f"{self.base_url}/metrics").text)

    def records(self) -> list[dict[str, Any]]:
        """Return all whole lines of the request log."""
        if not self.request_log.exists():
            return []
        text = self.request_log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def record(self, request_id: str) -> dict[str, Any]:
        """Return the one line of the request log about this request; it may be written after the answer."""

        def found() -> list[dict[str, Any]]:
            return [record for record in self.records() if request_id in record.values()]

        lines = eventually(f"the log line of {request_id}", found, seconds=10)
        assert len(lines) == 1
        return dict(lines[0])

    def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        eventually("no request in flight", lambda: self.metrics().total("foveate_requests_in_flight") == 0)

    def wait_told(self) -> None:
        """Wait until no request is in flight, and the log has a line of each that ended: a thread writes them, after the answers."""
        self.wait_idle()
        ended = self.metrics().total("foveate_requests_total")
        eventually("a log line of every request", lambda: len(self.records()) >= ended)


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def families(self) -> dict[str, Metric]:
        return {family.name: family for family in text_string_to_metric_families(self.text)}

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of this name that have these labels; 0 if there are none."""
        return sum(sample.value for sample in self._samples(name) if labels.items() <= sample.labels.items())

    def has(self, name: str) -> bool:
        return bool(self._samples(name))

    def label_values(self, name: str, label: str, **labels: str) -> set[str]:
        """Return the values of ``label`` with a non-zero sample."""
        return {
            sample.labels[label]
            for sample in self._samples(name)
            if sample.value and labels.items() <= sample.labels.items()
        }

    def _samples(self, name: str) -> list[Sample]:
        """Only these lines are parsed: the whole takes longer than what a test waits for."""
        lines = [line for line in self.text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        found = text_string_to_metric_families("".join(f"{line}\n" for line in lines))
        return [sample for family in found for sample in family.samples]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def resident_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the resident memory of all of these together."""
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
