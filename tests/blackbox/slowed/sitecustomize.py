"""Makes two stages slow from outside: Python imports this by itself in every process that has its directory on PYTHONPATH.

The file that ``SLOWED`` names says how long: ``{"vision_encode": 0.4}``, in seconds. The product has no such switch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

WORKER = "foveate.encoders.worker"


def wait(stage: str) -> None:
    time.sleep(json.loads(Path(os.environ["SLOWED"]).read_text()).get(stage, 0))


def slowed(call: Callable[..., Any], stage: str) -> Callable[..., Any]:
    def slow(*args: Any, **given: Any) -> Any:
        wait(stage)
        return call(*args, **given)

    return slow


class SlowTower:
    """A vision tower that takes its time."""

    def __init__(self, tower: Any) -> None:
        self._tower = tower
        self.encode = slowed(tower.encode, "vision_encode")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tower, name)


def slow_down(worker: Any) -> None:
    begin = worker.EncoderThread.__init__
    worker.EncoderThread.__init__ = lambda self, tower, *args, **given: begin(self, SlowTower(tower), *args, **given)
    worker.write_embeddings = slowed(worker.write_embeddings, "embedding_transfer")


class Finder(MetaPathFinder):
    """Changes the worker's module once it has been executed, as the last step of its import."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != WORKER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            slow_down(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "SLOWED" in os.environ:
    sys.meta_path.insert(0, Finder())
