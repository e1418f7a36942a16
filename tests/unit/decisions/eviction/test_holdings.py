"""Holdings against a model under every policy, and what holds whatever the policy."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from foveate.decisions.eviction import POLICY_NAMES, Held, Holdings, LeastRecentlyUsed, PolicyName, make_policy

Names = Holdings[str, str]


def holdings(bytes_max: int = 10) -> Names:
    return Holdings(bytes_max, LeastRecentlyUsed())


def keep(held_in: Names, key: str, size: int) -> list[str]:
    """Add an entry nobody uses; return what was given up for it."""
    held, freed = held_in.add(key, key.upper(), size)
    assert held is not None
    assert held_in.unpin(held) == []
    return freed


def use(held_in: Names, key: str) -> None:
    held = held_in.pin(key)
    assert held is not None
    held_in.unpin(held)


def test_the_least_recently_used_goes_first() -> None:
    cache = holdings()
    for key in ("a", "b", "c"):
        keep(cache, key, 3)
    use(cache, "a")
    assert keep(cache, "d", 4) == ["B"]
    assert cache.keys() == ["a", "c", "d"]
    assert cache.bytes == 10


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_demoted_go_before_all_others_until_they_are_used_again(policy: PolicyName) -> None:
    cache: Names = Holdings(10, make_policy(policy, 10))
    for key in ("a", "b", "c"):
        keep(cache, key, 3)
    cache.demote("c")
    cache.demote("b")
    use(cache, "b")
    assert cache.shrink(1, "memory") == ["C"]
    assert cache.shrink(1, "memory") == ["A"]
    cache.demote("never seen")
    cache.demote("b")
    cache.drop("b", "dropped")
    assert cache.shrink(1, "memory") == []


def test_an_entry_in_use_is_not_given_up_nor_demoted() -> None:
    cache = holdings()
    keep(cache, "a", 3)
    keep(cache, "b", 3)
    held = cache.pin("a")
    assert held is not None
    cache.demote("a")
    assert keep(cache, "c", 7) == ["B"]
    cache.unpin(held)
    assert cache.keys() == ["a", "c"]


def test_nothing_is_given_up_for_what_cannot_fit() -> None:
    cache = holdings()
    keep(cache, "a", 3)
    keep(cache, "b", 3)
    assert cache.add("big", "BIG", 11) == (None, [])
    held = cache.pin("a")
    assert cache.add("large", "LARGE", 8) == (None, [])
    assert (cache.oversize, cache.crowded, cache.keys(), cache.bytes) == (1, 1, ["a", "b"], 6)
    assert held is not None


def test_a_dropped_entry_counts_until_its_last_user_left() -> None:
    cache = holdings()
    held, _ = cache.add("a", "A", 6)
    assert held is not None
    cache.repin(held)
    assert cache.drop("a", "dropped") == []
    assert cache.pin("a") is None
    assert (len(cache), cache.bytes, cache.pinned) == (0, 6, 1)
    assert cache.add("b", "B", 5) == (None, [])
    assert cache.unpin(held) == []
    assert cache.unpin(held) == ["A"]
    assert (cache.bytes, cache.pinned) == (0, 0)
    with pytest.raises(RuntimeError, match="more often"):
        cache.unpin(held)
    with pytest.raises(RuntimeError, match="in use"):
        cache.repin(held)


def test_a_key_can_come_back_while_its_dropped_entry_is_in_use() -> None:
    cache = holdings()
    old, _ = cache.add("a", "old", 4)
    cache.drop("a", "dropped")
    new, _ = cache.add("a", "new", 4)
    assert old is not None
    assert new is not None
    assert cache.unpin(old) == ["old"]
    assert cache.unpin(new) == []
    assert (cache.keys(), cache.bytes) == (["a"], 4)


def test_misuse_is_refused() -> None:
    cache = holdings()
    keep(cache, "a", 1)
    with pytest.raises(KeyError):
        cache.add("a", "again", 1)
    with pytest.raises(ValueError, match="negative"):
        cache.add("b", "B", -1)
    with pytest.raises(ValueError, match="negative"):
        holdings(-1)


def test_evictions_are_counted_by_reason() -> None:
    cache = holdings()
    for key in "abcde":
        keep(cache, key, 2)
    keep(cache, "f", 1)
    cache.shrink(3, "memory")
    cache.drop("d", "dropped")
    cache.drop_where(lambda key: key == "e", "version")
    keep(cache, "g", 1)
    cache.drop("g", "replaced")
    cache.drop_where(lambda key: True, "cleared")
    assert cache.evictions == {"capacity": 1, "memory": 2, "dropped": 1, "version": 1, "replaced": 1, "cleared": 1}
    assert cache.bytes == 0


class Model(RuleBasedStateMachine):
    """Random use against a plain model: what is listed, what is pinned, which values have come back."""

    pins = Bundle("pins")
    keys = st.sampled_from("abcdef")

    @initialize(bytes_max=st.integers(0, 40), policy=st.sampled_from(POLICY_NAMES))
    def begin(self, bytes_max: int, policy: PolicyName) -> None:
        self.cache: Holdings[str, int] = Holdings(bytes_max, make_policy(policy, bytes_max))
        self.sizes: dict[int, int] = {}
        self.users: dict[int, int] = {}
        self.listed: dict[str, int] = {}
        self.serial = 0
        self.held: dict[int, Held[str, int]] = {}
        self.demoted: set[int] = set()

    def check_demoted(self, freed: list[int]) -> None:
        """What was given up to make room begins with the demoted."""
        expected = min(len(freed), len(self.demoted))
        assert all(value in self.demoted for value in freed[:expected])

    def gave_up(self, values: list[int]) -> None:
        for value in values:
            self.demoted.discard(value)
            assert self.users.pop(value) == 0, "an entry in use was given up"
            del self.sizes[value], self.held[value]
            self.listed = {key: held for key, held in self.listed.items() if held != value}

    @rule(target=pins, key=keys, size=st.integers(0, 25), cost_ms=st.sampled_from((0.0, 1.0, 7.5)))
    def add(self, key: str, size: int, cost_ms: float) -> Held[str, int] | None:
        if key in self.listed:
            return None
        self.serial += 1
        evictable = sum(self.sizes[value] for value in self.listed.values() if not self.users[value])
        fits = self.cache.bytes - evictable + size <= self.cache.bytes_max
        kept_all = self.cache.bytes + size <= self.cache.bytes_max
        held, freed = self.cache.add(key, self.serial, size, cost_ms)
        assert not (freed and kept_all), "an entry was given up though there was room"
        self.check_demoted(freed)
        self.gave_up(freed)
        assert (held is not None) == fits
        if held is None:
            return None
        self.sizes[self.serial], self.users[self.serial], self.listed[key] = size, 1, self.serial
        self.held[self.serial] = held
        return held

    @rule(target=pins, key=keys)
    def pin(self, key: str) -> Held[str, int] | None:
        held = self.cache.pin(key)
        assert (held.value if held else None) == self.listed.get(key)
        if held is not None:
            self.users[held.value] += 1
            self.demoted.discard(held.value)
        return held

    @rule(key=keys, times=st.integers(1, 3))
    def use(self, key: str, times: int) -> None:
        """Come and go, so that a policy learns what is popular."""
        for _ in range(times):
            held = self.pin(key)
            if held is not None:
                self.unpin(held)

    @rule(held=consumes(pins))
    def give_back(self, held: Held[str, int] | None) -> None:
        if held is not None:
            self.unpin(held)

    def unpin(self, held: Held[str, int]) -> None:
        self.users[held.value] -= 1
        last = self.users[held.value] == 0 and held.value not in self.listed.values()
        freed = self.cache.unpin(held)
        assert freed == ([held.value] if last else [])
        self.gave_up(freed)

    @rule(key=keys)
    def demote(self, key: str) -> None:
        self.cache.demote(key)
        value = self.listed.get(key)
        if value is not None and not self.users[value]:
            self.demoted.add(value)

    @rule(wanted=st.integers(0, 20))
    def shrink(self, wanted: int) -> None:
        before = self.cache.bytes
        freed = self.cache.shrink(wanted, "memory")
        self.check_demoted(freed)
        self.gave_up(freed)
        evictable = any(not self.users[value] for value in self.listed.values())
        assert before - self.cache.bytes >= wanted or not evictable

    @rule(key=keys)
    def drop(self, key: str) -> None:
        value = self.listed.pop(key, None)
        freed = self.cache.drop(key, "dropped")
        assert freed == ([value] if value is not None and not self.users[value] else [])
        self.gave_up(freed)

    @rule()
    def clear(self) -> None:
        self.listed.clear()
        self.gave_up(self.cache.drop_where(lambda key: True, "cleared"))

    @invariant()
    def books(self) -> None:
        assert self.cache.bytes == sum(self.sizes.values()) <= self.cache.bytes_max
        assert self.cache.pinned == sum(users > 0 for users in self.users.values())
        assert set(self.cache.keys()) == set(self.listed)

    def teardown(self) -> None:
        """With every key dropped and every pin given back, nothing is left."""
        if not hasattr(self, "cache"):
            return
        self.clear()
        for value, held in list(self.held.items()):
            while self.users.get(value):
                self.unpin(held)
        assert (self.cache.bytes, self.cache.pinned, self.sizes) == (0, 0, {})


Model.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestModel = Model.TestCase
