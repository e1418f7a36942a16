"""What memory the server's processes hold, by kind, read from ``/proc`` at scrape time. Linux only; what is gone is left out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

OTHER: Final = "other"
PROCESS_KINDS: Final = ("gateway", "forkserver", "media", "encoder", "engine", "reference", OTHER)
"""Kinds as processes name themselves; what a process started counts with it (vLLM's core and workers with the engine)."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(processes: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Return the resident memory of ``processes`` (kind and pid each), by kind.

    Pages that several share, such as the arena's and what a fork left as it was, are counted in each of them, as ``top`` does.
    """
    named = {pid: kind if kind in PROCESS_KINDS else OTHER for kind, pid in processes}
    found: dict[str, float] = {}
    for pid, kind in named.items():
        pending = [pid]
        while pending:
            one = pending.pop()
            found[kind] = found.get(kind, 0.0) + _resident(one)
            pending += [child for child in _children(one) if child not in named]
    return found


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found
