"""A step that does not end takes its process with it; many that end do not, nor does time in which the process stood still."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

PROGRAM = """\
import ctypes, logging, sys, threading, time
from foveate.runtime.stuck_threads import Steps, end_with_stuck_step

steps = Steps()

def stuck_in_native_code():
    ctypes.CDLL(None).pause()

def short():
    time.sleep(0.01)

def reads():
    print("in it", flush=True)
    sys.stdin.readline()

def work():
    for step in {steps}:
        with steps:
            step()
    time.sleep({pause})

end_with_stuck_step(logging.getLogger(), "language-model", steps, {seconds_max})
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def started(steps: str, seconds_max: float, pause: float = 0.0) -> subprocess.Popen[str]:
    program = PROGRAM.format(steps=steps, seconds_max=seconds_max, pause=pause)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_step_in_native_code_that_never_ends() -> None:
    process = started("[short, stuck_in_native_code]", 0.5)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 70
    assert "a step of the language-model thread has not ended within 0.5 s" in told
    assert "in stuck_in_native_code" in told, "where it is stuck is told"


def test_neither_many_steps_nor_a_pause_after_them_count_as_one() -> None:
    process = started("[short] * 80", 0.5, pause=0.8)
    _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (0, "")


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    process = started("[reads]", 1.0)
    assert process.stdout is not None
    assert process.stdout.readline() == "in it\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.2)
    process.send_signal(signal.SIGCONT)
    _, told = process.communicate("go on\n", timeout=30)
    assert (process.returncode, told) == (0, "")
