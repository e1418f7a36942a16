"""Models and drivers for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.families import build_family
from tests.unit.models.loaded import Loaded, load

from foveate.models.files import DEMO_DIRECTORY


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """Return a loaded model: ``demo``, or a random one of a family."""

    def directory(name: str) -> Path:
        return DEMO_DIRECTORY if name == "demo" else build_family(name, tmp_path_factory.mktemp(name))

    return cache(lambda name: load(directory(name)))


@pytest.fixture
def demo(model_of: Callable[[str], Loaded]) -> Loaded:
    """The demonstration model."""
    return model_of("demo")
