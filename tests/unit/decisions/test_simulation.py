"""Two ways to the same hits: stack distances for all capacities at once, and a cache that is really run."""

from __future__ import annotations

import numpy as np
import pytest

from foveate.bench.traces import chat, scans, unique, zipf
from foveate.decisions.eviction import POLICY_NAMES
from foveate.decisions.recency import RecencyStack
from foveate.decisions.simulation import StackDistances, replay

TRACES = {
    "zipf": zipf(8000, 0.8, 3, contents=1200),
    "chat": chat(8000, 4, conversations=30),
    "scans": scans(8000, 0.9, 5, contents=600),
}


@pytest.mark.parametrize("name", TRACES)
def test_stack_distances_are_what_a_cache_does(name: str) -> None:
    trace = TRACES[name]
    exact = StackDistances(trace)
    assert exact.bytes == sum(content.size for content in set(trace))
    for part in (1.0, 0.5, 0.2, 0.1, 0.05):
        capacity = int(exact.bytes * part)
        assert capacity > max(content.size for content in trace), "a stack has no entries larger than the cache"
        outcome = replay(trace, "lru", capacity)
        assert exact.at(capacity).hit_ratio == outcome.hit_ratio
        assert exact.at(capacity).saved_share == pytest.approx(outcome.saved_share)
    assert exact.at(None) == exact.at(exact.bytes)
    assert exact.at(0).hit_ratio == 0


def test_stack_distances_are_those_of_a_stack_kept_as_one_goes() -> None:
    trace = TRACES["zipf"]
    numbers = {content: number for number, content in enumerate(dict.fromkeys(trace))}
    members, sizes = np.array([numbers[it] for it in trace]), np.array([it.size for it in trace])
    stack = RecencyStack(len(numbers), 100)
    expected: list[int] = []
    for start in range(0, len(trace), 100):
        above = stack.use(members[start : start + 100], sizes[start : start + 100])
        expected += (above + sizes[start : start + 100])[above >= 0].tolist()
    assert StackDistances(trace)._distances.tolist() == expected


def test_nothing_and_media_that_never_come_back_have_no_hits() -> None:
    for trace in ([], unique(500, 1)):
        assert StackDistances(trace).at(None).hit_ratio == 0
        assert replay(trace, "gdsf", 10**9).hit_ratio == 0


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_hits_all_that_comes_back_when_all_fits(policy: str) -> None:
    trace = TRACES["chat"]
    exact = StackDistances(trace)
    assert replay(trace, policy, exact.bytes).hit_ratio == exact.at(None).hit_ratio  # type: ignore[arg-type]


def test_the_policies_differ_as_documented() -> None:
    """docs/caches.md: popular media favour S3-FIFO and GDSF, conversations that fit favour least-recently-used."""
    popular, conversations = zipf(20_000, 0.9, 0, contents=2000), chat(20_000, 0, conversations=40)
    saved = {
        (name, policy): replay(trace, policy, StackDistances(trace).bytes // 16).saved_share
        for name, trace in (("popular", popular), ("chat", conversations))
        for policy in POLICY_NAMES
    }
    for other in ("s3_fifo", "gdsf"):
        assert saved["popular", other] > saved["popular", "lru"] + 0.05
        assert saved["chat", other] < saved["chat", "lru"] - 0.05
