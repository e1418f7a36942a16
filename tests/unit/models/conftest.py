"""Loaded tiny models, each built and loaded once for the whole run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.families import build_family
from tests.unit.models.loaded import Loaded, load

from foveate.models.files import DEMO_DIRECTORY


@pytest.fixture(scope="session")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the checkpoint directory of a family by its name."""
    return cache(lambda name: build_family(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def model_of(directory_of: Callable[[str], Path]) -> Callable[[str], Loaded]:
    """Return a family's loaded model by its name."""
    return cache(lambda name: load(directory_of(name)))


@pytest.fixture(scope="session")
def demo() -> Loaded:
    """The shipped model."""
    return load(DEMO_DIRECTORY)
