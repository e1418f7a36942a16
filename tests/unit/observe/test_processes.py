"""Memory of processes by kind, of real ones."""

from __future__ import annotations

import os
import subprocess
import sys

from foveate.observe.processes import resident_bytes

HOLD = "import sys; held = bytearray(64 << 20); held[::4096] = b'x' * len(held[::4096]); print('held', flush=True); sys.stdin.read()"


def test_a_process_counts_with_those_it_started() -> None:
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"
    command = [sys.executable, "-c", outer]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        found = resident_bytes([("gateway", os.getpid()), ("engine", child.pid)])
        assert resident_bytes([("a kind of tomorrow", child.pid)])["other"] > 64 << 20, "a scrape never fails of it"
        child.stdin.close()
    assert 64 << 20 < found["engine"] < 256 << 20
    assert found["gateway"] < found["engine"] + (4 << 30)
    assert resident_bytes([("media", child.pid)]) == {"media": 0}, "one that is gone holds nothing"
