"""Owners: always the same, evenly spread, moved as little as can be, never loaded beyond the bound."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.decisions.ownership import LOAD_BOUND, owner, ranked

IDLE = dict.fromkeys(range(4), 0.0)
CONTENTS = [f"content {number}" for number in range(2000)]


def test_owners_are_always_the_same_and_evenly_spread() -> None:
    first = [owner(content, IDLE, 1) for content in CONTENTS]
    assert first == [owner(content, IDLE, 1) for content in CONTENTS]
    assert min(Counter(first).values()) > 0.8 * len(CONTENTS) / 4


def test_a_worker_that_comes_or_goes_moves_only_its_own() -> None:
    before = {content: owner(content, IDLE, 1) for content in CONTENTS}
    without = {member: load for member, load in IDLE.items() if member != 2}
    for content, member in before.items():
        assert owner(content, without, 1) == (member if member != 2 else ranked(content, IDLE)[1])
    more = {content: owner(content, IDLE | {9: 0.0}, 1) for content in CONTENTS}
    moved = [content for content in CONTENTS if more[content] != before[content]]
    assert {more[content] for content in moved} == {9}
    assert len(moved) == pytest.approx(len(CONTENTS) / 5, rel=0.2)


def test_an_unknown_content_goes_where_the_load_is_least() -> None:
    assert owner("", {0: 5.0, 1: 2.0, 2: 2.0}, 1) == 1


def test_one_popular_content_does_not_gather_on_one_worker() -> None:
    loads = dict(IDLE)
    for _ in range(80):
        loads[owner("the same", loads, 10)] += 10
    assert max(loads.values()) <= LOAD_BOUND * 200 + 10


@settings(deadline=None)
@given(
    loads=st.dictionaries(st.integers(0, 63), st.floats(0, 1e6), min_size=1, max_size=12),
    demand=st.integers(1, 20000),
    content=st.text(min_size=1, max_size=8),
)
def test_there_is_always_one_and_none_beyond_the_bound(loads: dict[int, float], demand: int, content: str) -> None:
    chosen = owner(content, loads, demand)
    mean = (sum(loads.values()) + demand) / len(loads)
    assert loads[chosen] + demand <= LOAD_BOUND * mean + 1e-6 or loads[chosen] <= min(loads.values()) + 1e-6


@pytest.mark.parametrize(("loads", "bound"), [({}, 1.25), ({0: 0.0}, 0.9)])
def test_no_worker_and_a_bound_that_leaves_none_are_errors(loads: dict[int, float], bound: float) -> None:
    with pytest.raises(ValueError, match="owner"):
        owner("x", loads, 1, bound=bound)
