"""Fuzz every target for a while: ``python -m tests.fuzz.run --seconds 60 [NAME ...]``.

Each target runs in a process of its own, so that a native crash is a finding like any other. What it found is left in
``artifacts/fuzz/NAME/`` (``crash-``, ``timeout-``, ``oom-``) beside the corpus that later runs go on from; a finding that was mended
belongs into ``tests/fuzz/regressions/NAME/``, where every test run replays it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

from tests.fuzz.target import TARGETS

ROOT = Path(__file__).parents[2]
INPUT_BYTES_MAX = 32 * 1024
JOB_SECONDS_MAX = 20
MEMORY_MIB_MAX = 3072
FINDINGS = ("crash-*", "timeout-*", "oom-*", "leak-*")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--seconds", type=int, default=60, help="time for each target")
    arguments.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; default: all")
    given = arguments.parse_args()
    found = [path for name in given.targets or TARGETS for path in fuzz(name, given.seconds)]
    for path in found:
        sys.stderr.write(f"finding: {path.relative_to(ROOT)}\n")
    return 1 if found else 0


def fuzz(name: str, seconds: int) -> list[Path]:
    """Run one target and return the files of what it found; a target that does not run at all is an error."""
    directory = ROOT / "artifacts" / "fuzz" / name
    corpus, first = directory / "corpus", directory / "seeds"
    for each in (corpus, first):
        each.mkdir(parents=True, exist_ok=True)
    for seed in importlib.import_module(f"tests.fuzz.{name}").seeds():
        (first / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    before = set(findings(directory))
    options = {
        "max_total_time": seconds,
        "max_len": INPUT_BYTES_MAX,
        "timeout": JOB_SECONDS_MAX,
        "rss_limit_mb": MEMORY_MIB_MAX,
        "artifact_prefix": f"{directory}/",
        "print_final_stats": 1,
        "verbosity": 1,
    }
    command = [sys.executable, "-m", "tests.fuzz.target", name, *(f"-{key}={value}" for key, value in options.items())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run([*command, corpus, first], cwd=ROOT, env=environment, check=False)
    found = sorted(set(findings(directory)) - before)
    if ended.returncode != 0 and not found:
        raise SystemExit(f"the fuzz target {name} ended with {ended.returncode} and left no finding")
    return found


def findings(directory: Path) -> list[Path]:
    return sorted(path for pattern in FINDINGS for path in directory.glob(pattern))


if __name__ == "__main__":
    raise SystemExit(main())
