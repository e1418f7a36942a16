"""Starts of servers that cannot start, for what a user did wrong."""

from __future__ import annotations

import os
import tempfile

from tests.blackbox.server import environment, free_port
from tests.forked import ForkedServer


def failing(*flags: str, **env: str) -> str:
    """Start a server that cannot start; return the one line that says why."""
    port = () if "--port" in flags else ("--port", str(free_port()))
    arguments = ("--host", "127.0.0.1", *port, *flags)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = ForkedServer(
            arguments, output=output.fileno(), errors=errors.fileno(), environment=environment(**env)
        )
        try:
            code = process.wait(90)
        finally:
            process.kill()
        said = [os.pread(file.fileno(), 1 << 20, 0).decode() for file in (output, errors)]
    return told(code, *said)


def told(code: int, output: str, errors: str) -> str:
    """Hold what a start came to, to what all that fail have in common; return its line."""
    assert code == 2, (code, output, errors)
    assert "Traceback" not in output + errors
    lines = [line for line in errors.splitlines() if line.startswith("foveate: ")]
    assert len(lines) == 1, errors
    assert errors.rstrip().endswith(lines[0]), errors
    return lines[0]
