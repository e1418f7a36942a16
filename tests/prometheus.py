"""Finds the real prometheus and promtool: on the PATH, or where ``make test`` unpacked them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNPACKED = ROOT / ".venv" / "prometheus"


def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; skip where there is none, but fail in CI, which must have it."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        said = f"no {name}: `make test` fetches it with tools/fetch_prometheus.sh"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    return found
