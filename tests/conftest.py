"""What holds for every test of the project, and what tests of several folders share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ray_cluster import driving

# Models of a megabyte are slower with several threads, which wait for each other by turning in circles, and slow down whatever else runs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell without job control starts its background jobs with Ctrl-C ignored, and an ignored signal stays ignored in every child:
# a test that interrupts a process of its own would wait for ever, depending on how the tests were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread the tests over several processes as ``tests/spread.py`` says."""
    if config.getvalue("dist") != "loadscope":
        return None
    from tests.spread import Spread

    config.option.loadscopereorder = False
    return Spread(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In one of several processes: tell which tests are in which group."""
    if hasattr(config, "workerinput"):
        from tests.spread import tell_groups

        tell_groups(config.workerinput, items)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster that this process drives, from a node of its own."""
    with driving() as cluster:
        yield cluster
