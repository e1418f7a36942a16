"""Which server gets a request: properties over any servers, and what they come to over a run of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.decisions import health
from foveate.decisions.health import Health
from foveate.decisions.routing import SHARE_FIRST, STREAM_TOKENS, Candidate, pick

BOUND = 1.25
candidates = st.builds(
    Candidate,
    weight=st.floats(0.1, 10),
    share=st.floats(SHARE_FIRST, 1),
    outstanding=st.floats(0, 1e6),
    in_flight=st.integers(0, 20),
    places=st.integers(1, 20),
    matched=st.floats(0, 1e5),
)
groups = st.lists(candidates, min_size=1, max_size=8)
demands = st.floats(1, 1e5)


@given(groups, demands, st.integers(0, 100))
def test_only_a_server_with_a_place_is_chosen_and_none_only_when_all_are_full(
    servers: list[Candidate], demand: float, turn: int
) -> None:
    chosen = pick(servers, demand, bound=BOUND, turn=turn)
    if chosen is None:
        assert all(server.full for server in servers)
    else:
        assert not servers[chosen].full


@given(groups, demands)
def test_without_affinity_nobody_with_a_place_would_be_done_sooner(servers: list[Candidate], demand: float) -> None:
    servers = [Candidate(one.weight, one.share, one.outstanding, one.in_flight, one.places) for one in servers]
    chosen = pick(servers, demand, bound=BOUND)
    if chosen is not None:
        after = (servers[chosen].outstanding + demand) / servers[chosen].capacity
        assert all(after <= (one.outstanding + demand) / one.capacity * (1 + 1e-9) for one in servers if not one.full)


@given(groups, demands)
def test_affinity_never_adds_to_a_server_beyond_the_bound(servers: list[Candidate], demand: float) -> None:
    chosen = pick(servers, demand, bound=BOUND)
    plain = pick(
        [Candidate(one.weight, one.share, one.outstanding, one.in_flight, one.places) for one in servers],
        demand,
        bound=BOUND,
    )
    if chosen is None or chosen == plain:
        return
    mean = (sum(one.outstanding for one in servers) + demand) / sum(one.capacity for one in servers)
    least = min((one.outstanding + demand) / one.capacity for one in servers if not one.full)
    after = (servers[chosen].outstanding + demand) / servers[chosen].capacity
    assert servers[chosen].load <= BOUND * mean or after <= least * (1 + 1e-9)


@given(groups, demands)
def test_affinity_is_followed_no_further_than_it_saves(servers: list[Candidate], demand: float) -> None:
    chosen = pick(servers, demand, bound=BOUND)
    if chosen is None:
        return
    one = servers[chosen]
    least = min((other.outstanding + demand) / other.capacity for other in servers if not other.full)
    assert (one.outstanding + demand - min(one.matched, demand)) / one.capacity <= least * (1 + 1e-9)


def test_the_same_picture_goes_to_the_same_server_and_equals_take_turns() -> None:
    idle = [Candidate(places=9), Candidate(places=9, matched=200)]
    assert {pick(idle, 250, bound=BOUND, turn=turn) for turn in range(4)} == {1}
    assert [pick([Candidate(places=9)] * 3, 10, bound=BOUND, turn=turn) for turn in range(4)] == [0, 1, 2, 0]


def test_a_hot_server_gets_no_more_of_what_it_has_cached() -> None:
    hot = [Candidate(places=99, outstanding=5000, matched=1000), Candidate(places=99, outstanding=100)]
    assert pick(hot, 1000, bound=BOUND) == 1


def test_a_bound_below_the_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="mean"):
        pick([Candidate()], 1, bound=0.9)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(10, 2000)), min_size=50, max_size=150))
def test_one_popular_picture_does_not_pile_up(requests: list[tuple[int, int]]) -> None:
    """Requests that stay: half of them about picture 0, which server 0 had first. No server ends beyond the bound and one request."""
    outstanding, seen = [0.0, 0.0, 0.0], [{0}, set[int](), set[int]()]
    most = 0.0
    for turn, (picture, demand) in enumerate(requests):
        picture = 0 if turn % 2 else picture
        servers = [
            Candidate(outstanding=outstanding[at], places=10**6, matched=demand if picture in seen[at] else 0)
            for at in range(3)
        ]
        chosen = pick(servers, demand, bound=BOUND, turn=turn)
        assert chosen is not None
        outstanding[chosen] += demand
        seen[chosen].add(picture)
        most = max(most, demand)
    assert max(outstanding) <= BOUND * (sum(outstanding) / 3 + most) + most


@given(st.floats(1, 50), st.floats(0, 60))
def test_a_server_that_came_back_is_not_run_over(recover: float, passed: float) -> None:
    """However many come at once, it gets its share of them, which begins with a tenth."""
    back = health.looked_well(Health(up=False, failures=3, since=100.0), 200.0)
    share = health.share(back, 200.0 + passed, recover)
    assert SHARE_FIRST <= share <= 1
    outstanding = [4000.0, 4000.0, 0.0]
    given_to_it = 0
    for turn in range(100):
        servers = [
            Candidate(share=1.0 if at < 2 else share, outstanding=outstanding[at], places=1000) for at in range(3)
        ]
        chosen = pick(servers, 100, bound=BOUND, turn=turn)
        assert chosen is not None
        outstanding[chosen] += 100
        given_to_it += chosen == 2
    fair = sum(outstanding) * share / (2 + share)
    assert given_to_it * 100 <= fair + 100 * 2


def test_places_of_a_server_that_came_back_are_few() -> None:
    assert Candidate(share=0.1, in_flight=2, places=20).full
    assert not Candidate(share=0.1, in_flight=0, places=4).full, "one is always there, or nobody would find out"


def test_a_stream_weighs_little() -> None:
    busy = [Candidate(places=99, outstanding=10 * STREAM_TOKENS), Candidate(places=99, outstanding=2000)]
    assert pick(busy, 100, bound=BOUND) == 0
