from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveate.observe.loop_lag import LoopLag, quantile


async def test_the_probe_samples_while_it_is_open_and_not_after() -> None:
    seen: list[float] = []
    fifth = asyncio.Event()

    def listen(lag: float) -> None:
        seen.append(lag)
        if len(seen) >= 5:
            fifth.set()

    async with LoopLag(listen, interval_seconds=0.001):
        await fifth.wait()
    stopped = len(seen)
    assert stopped >= 5
    assert all(lag >= 0 for lag in seen)
    await asyncio.sleep(0.02)
    assert len(seen) == stopped


async def test_a_stall_is_seen_with_the_samples_it_held_up() -> None:
    async with LoopLag(interval_seconds=0.01) as probe:
        await asyncio.sleep(0)
        time.sleep(0.1)  # noqa: ASYNC251  the stall under test
        await asyncio.sleep(0.03)
        assert probe.max() >= 0.08
        assert probe.p99() >= 0.08
        assert probe.samples >= 8


def test_held_up_samples_fall_by_the_interval() -> None:
    probe = LoopLag(interval_seconds=0.01)
    seen: list[float] = []
    probe = LoopLag(seen.append, interval_seconds=0.01)
    probe.record(0.035)
    assert seen == pytest.approx([0.035, 0.025, 0.015, 0.005])
    probe.record(0.0)
    assert seen[-1] == 0.0
    probe.clear()
    assert (probe.samples, probe.p99(), probe.max()) == (0, 0.0, 0.0)


def test_the_window_is_bounded_whatever_the_stall() -> None:
    probe = LoopLag(interval_seconds=0.01, window_seconds=1.0)
    probe.record(3600.0)
    assert probe.samples == 100


async def test_a_failing_listener_does_not_stop_the_probe() -> None:
    def fail(lag: float) -> None:
        raise RuntimeError("listener")

    told: list[dict[str, object]] = []
    twice = asyncio.Event()

    def tell(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        told.append(context)
        if len(told) == 2:
            twice.set()

    asyncio.get_running_loop().set_exception_handler(tell)
    async with LoopLag(fail, interval_seconds=0.001):
        await twice.wait()
    assert isinstance(told[0]["exception"], RuntimeError)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300), st.floats(0.01, 1))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_quantile_is_the_nearest_rank(samples: list[float], q: float) -> None:
    found = quantile(samples, q)
    assert found in samples
    assert sum(sample <= found for sample in samples) >= q * len(samples) - 1e-9
    assert sum(sample < found for sample in samples) < q * len(samples) + 1e-9
