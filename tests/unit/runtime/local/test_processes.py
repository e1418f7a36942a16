"""What a machine is left with: names, threads, descriptors, and nothing after any kind of death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.workers import Answer, Ask, Write

from foveate.core.errors import StartupError
from foveate.runtime.arena import Arena
from foveate.runtime.local.launcher import _PROGRAM
from foveate.runtime.local.process import LocalWorker
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.port import WorkerSpec

ROOT = Path(__file__).parents[4]

GATEWAY = """\
import asyncio, json, os, sys
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.port import WorkerSpec
from tests.workers import Answer, Ask, Write

with open(sys.argv[1], "a") as marker:
    marker.write("imported;")

async def main():
    runtime = LocalRuntime(Arena(1 << 20))
    pids = []
    for index, entry in enumerate(("echo", "echo", "deaf")):
        worker = runtime.worker(WorkerSpec("media", index, "tests.workers:" + entry, None, Ask | Write, Answer))
        ready = await worker.start(on_message=print, on_exit=lambda: None, seconds_max=30)
        pids.append(ready.info["pid"])
        worker.send(Ask("sleep", 600 if index == 1 else 0))
    print(json.dumps([runtime._forkserver.pid, *pids]), file=sys.stderr, flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


class Machine:
    def __init__(self) -> None:
        self.runtime = LocalRuntime(Arena(1 << 20))
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.exits: asyncio.Queue[int] = asyncio.Queue()

    async def start(self, index: int = 0, entry: str = "echo") -> LocalWorker:
        worker = self.runtime.worker(WorkerSpec("media", index, f"tests.workers:{entry}", None, Ask | Write, Answer))
        await worker.start(
            on_message=self.messages.put_nowait, on_exit=lambda: self.exits.put_nowait(index), seconds_max=30
        )
        return worker

    async def ask(self, worker: LocalWorker, what: str, value: Any = None) -> Any:
        worker.send(Ask(what, value))
        while not isinstance(answer := await self.messages.get(), Answer):
            pass
        return answer.value

    @property
    def forkserver(self) -> psutil.Process:
        assert self.runtime._forkserver.pid is not None
        return psutil.Process(self.runtime._forkserver.pid)


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    before = {child.pid for child in psutil.Process().children()}  # other tests' servers may still run
    machine = Machine()
    yield machine
    await machine.runtime.close()
    left = [child for child in psutil.Process().children() if child.pid not in before]
    assert not [child for child in left if "foveate" in " ".join(child.cmdline())]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # an orphan that its new parent has yet to reap
    except psutil.NoSuchProcess:
        return True


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def wait_until_gone(pids: list[int], seconds: float = 10) -> list[int]:
    """Return those of ``pids`` that are still there."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if not gone(pid)]) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def start_gateway(tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    script = tmp_path / "gateway.py"
    script.write_text(GATEWAY)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "marker")],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    return process, json.loads(process.stderr.readline())


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_that_is_killed_leaves_nothing(tmp_path: Path, death: signal.Signals) -> None:
    process, pids = start_gateway(tmp_path)
    with process:
        assert len(pids) == 4
        assert not any(gone(pid) for pid in pids)
        process.send_signal(death)
        process.wait(60)
        assert not wait_until_gone(pids)
        assert process.stderr is not None
        assert process.stderr.read() == "", "every worker closed its standard error, and none complained"


def test_the_main_module_is_not_run_again_in_workers(tmp_path: Path) -> None:
    process, pids = start_gateway(tmp_path)
    with process:
        process.kill()
    assert (tmp_path / "marker").read_text() == "imported;"
    assert not wait_until_gone(pids)


def test_ctrl_c_reaches_the_gateway_only(tmp_path: Path) -> None:
    process, pids = start_gateway(tmp_path)
    with process:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
        assert process.stderr is not None
        complaints = process.stderr.read()
    assert "KeyboardInterrupt" in complaints
    assert "bootstrap" not in complaints
    assert "forkserver" not in complaints
    assert not wait_until_gone(pids)


def test_a_forkserver_whose_gateway_is_dead_already_ends() -> None:
    config = {"parent_pid": 1, "sys_path": sys.path}
    ended = subprocess.run([sys.executable, "-c", _PROGRAM, json.dumps(config)], capture_output=True, timeout=30)
    assert ended.returncode == 0
    assert not ended.stderr


async def test_every_process_is_named_and_has_one_thread(machine: Machine) -> None:
    workers = [await machine.start(index) for index in range(2)]
    assert title(machine.forkserver.pid) == "foveate: forkserver"
    assert [title(worker.pid) for worker in workers] == ["foveate: media 0", "foveate: media 1"]
    assert machine.forkserver.num_threads() == 1
    family = {child.pid for child in machine.forkserver.children(recursive=True)}
    assert family == {worker.pid for worker in workers}, "no process beside the workers"


async def test_a_worker_holds_no_descriptor_of_another(machine: Machine) -> None:
    first, second = await machine.start(0), await machine.start(1)
    theirs = [await machine.ask(worker, "open_files") for worker in (first, second)]
    sockets = [{name for name in names if name.startswith("socket:")} for names in theirs]
    assert [len(found) for found in sockets] == [1, 1]
    assert not sockets[0] & sockets[1]
    assert not any("anon_inode" in name for names in theirs for name in names)


async def test_restarts_leave_no_descriptors_behind(machine: Machine) -> None:
    await machine.start(0)
    before = len(os.listdir("/proc/self/fd")), machine.forkserver.num_fds()
    for _ in range(5):
        worker = await machine.start(1)
        worker.kill()
        await machine.exits.get()
    # The forkserver tells of an end first and closes its own descriptors after that: they are gone soon, not at once.
    async with asyncio.timeout(30):
        while (len(os.listdir("/proc/self/fd")), machine.forkserver.num_fds()) != before:
            await asyncio.sleep(0.02)


async def test_a_dead_forkserver_takes_its_workers_with_it_and_is_replaced(machine: Machine) -> None:
    workers = [await machine.start(index) for index in range(2)]
    old = machine.forkserver
    old.kill()
    assert {await machine.exits.get(), await machine.exits.get()} == {0, 1}
    assert not any(worker.alive for worker in workers)
    assert not wait_until_gone([worker.pid for worker in workers if worker.pid])
    successor = await machine.start(0)
    assert await machine.ask(successor, "say", "back") == "back"
    assert machine.forkserver.pid != old.pid


async def test_a_stopped_worker_can_still_be_killed(machine: Machine) -> None:
    worker = await machine.start(0)
    os.kill(worker.pid, signal.SIGSTOP)
    await worker.stop(seconds_max=0.1)
    assert machine.exits.get_nowait() == 0


async def test_a_worker_ends_even_while_the_forkserver_hangs(machine: Machine) -> None:
    worker = await machine.start(0)
    machine.forkserver.suspend()
    await worker.stop(seconds_max=0.1)
    assert machine.exits.get_nowait() == 0
    assert gone(worker.pid)


async def test_a_start_that_is_given_up_before_the_fork_leaves_nothing(machine: Machine) -> None:
    first = await machine.start(0)
    machine.forkserver.suspend()
    late = machine.runtime.worker(WorkerSpec("media", 1, "tests.workers:echo", None, Ask, Answer))
    with pytest.raises(StartupError, match="not ready"):
        await late.start(on_message=print, on_exit=pytest.fail, seconds_max=0.1)
    await late.wait()
    assert not late.alive
    machine.forkserver.resume()
    successor = await machine.start(1)
    assert await machine.ask(successor, "say", "next") == "next"
    others = {child.pid for child in machine.forkserver.children()} - {first.pid, successor.pid}
    assert not wait_until_gone(list(others))


async def test_a_worker_starts_once(machine: Machine) -> None:
    worker = await machine.start(0)
    with pytest.raises(RuntimeError, match="was started before"):
        await worker.start(on_message=print, on_exit=print, seconds_max=1)
    assert await machine.ask(worker, "say", 1) == 1


async def test_workers_find_the_preloaded_modules(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    machine = Machine()
    await machine.runtime.close()
    machine.runtime = LocalRuntime(Arena(1 << 20), preload=["colorsys", "no_such_module"])
    worker = await machine.start()
    assert await machine.ask(worker, "modules", ["colorsys", "wave"]) == ["colorsys"]
    assert "No module named 'no_such_module'" in capfd.readouterr().err
    await machine.runtime.close()


async def test_no_worker_is_told_the_gateways_settings(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may hold API keys."""
    monkeypatch.setenv("FOVEATE_AUTH__KEYS", "acme:default:plain:fov-nobody-may-read-this-key")
    monkeypatch.setenv("KEPT", "1")
    told = await machine.ask(await machine.start(), "environment")
    assert told["KEPT"] == "1"
    assert not [name for name in told if name.upper().startswith("FOVEATE")]
    assert not [name for name in machine.forkserver.environ() if name.startswith("FOVEATE")]
