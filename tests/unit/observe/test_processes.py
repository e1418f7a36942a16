"""Memory of processes by kind, of real ones."""

from __future__ import annotations

import subprocess
import sys

import psutil

from foveate.observe.processes import resident_bytes

HOLD = "import sys; held = bytearray(64 << 20); held[::4096] = b'x' * len(held[::4096]); print('held', flush=True); sys.stdin.read()"


def test_a_process_counts_with_those_it_started() -> None:
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"
    outermost = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {outer!r}])"
    with subprocess.Popen([sys.executable, "-c", outermost], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        (named,) = psutil.Process(child.pid).children()
        found = resident_bytes([("gateway", child.pid), ("engine", named.pid)])
        assert resident_bytes([("a kind of tomorrow", child.pid)])["other"] > 64 << 20, "a scrape never fails of it"
        child.stdin.close()
    assert 64 << 20 < found["engine"] < 256 << 20
    assert 0 < found["gateway"] < 64 << 20, "one that has a name of its own counts under that alone"
    assert resident_bytes([("media", child.pid)]) == {"media": 0}, "one that is gone holds nothing"
