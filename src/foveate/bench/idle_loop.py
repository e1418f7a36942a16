"""An event loop with nothing to do but the lag probe, in a process of its own: what the kernel's scheduler alone makes of a busy machine.

Prints its 99th percentile in milliseconds when its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import uvloop

from foveate.observe.loop_lag import LoopLag


async def probe() -> float:
    """Measure until standard input ends; return the 99th percentile in seconds."""
    async with LoopLag() as lag:
        await asyncio.to_thread(sys.stdin.read)
        return lag.p99()


@contextlib.contextmanager
def beside() -> Iterator[Callable[[], float]]:
    """Run the probe in another process; the function that is yielded ends it and returns its 99th percentile in milliseconds."""
    command = [sys.executable, "-m", "foveate.bench.idle_loop"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield lambda: float(process.communicate(timeout=60)[0])
    finally:
        process.kill()
        process.wait(10)


if __name__ == "__main__":
    sys.stdout.write(f"{uvloop.run(probe()) * 1e3}\n")
