"""GDSF's order, and the bound on what it remembers."""

from __future__ import annotations

import random

from foveate.decisions.eviction import SavedPerByte


def add(policy: SavedPerByte[str], key: str, size: int, cost_ms: float) -> None:
    policy.add(key, size, cost_ms)
    policy.admit(key)


def use(policy: SavedPerByte[str], key: str) -> None:
    policy.touch(key)
    policy.admit(key)


def test_what_saves_least_per_byte_goes_first() -> None:
    policy: SavedPerByte[str] = SavedPerByte()
    add(policy, "large", 1000, 10.0)
    add(policy, "dear", 100, 50.0)
    add(policy, "small", 10, 1.0)
    assert [policy.evict() for _ in range(4)] == ["large", "small", "dear", None]


def test_frequency_counts() -> None:
    policy: SavedPerByte[str] = SavedPerByte()
    add(policy, "once", 100, 30.0)
    add(policy, "often", 100, 10.0)
    for _ in range(4):
        use(policy, "often")
    assert [policy.evict(), policy.evict()] == ["once", "often"]


def test_what_is_not_used_any_more_ages() -> None:
    policy: SavedPerByte[str] = SavedPerByte()
    add(policy, "famous", 100, 10.0)
    for _ in range(9):
        use(policy, "famous")
    gone = []
    for number in range(30):
        add(policy, f"new-{number}", 100, 10.0)
        gone.append(policy.evict())
    assert "famous" in gone
    assert gone.index("famous") >= 9, "not before nine others of a tenth of its worth had gone"


def test_the_order_is_that_of_a_sorted_list() -> None:
    """Against the plain formula: rank at the last use, lowest first, ties by age; keys in use cannot go."""
    random_ = random.Random(7)
    policy: SavedPerByte[str] = SavedPerByte()
    clock, ranks, used = 0.0, {}, set()
    counts: dict[str, tuple[int, float]] = {}
    for number in range(3000):
        what = random_.random()
        idle = [key for key in ranks if key not in used]
        if what < 0.4 or not ranks:
            key, size, cost = f"k{number}", random_.randint(0, 50), random_.random() * 20
            policy.add(key, size, cost)
            counts[key], ranks[key] = (1, cost / max(size, 1)), clock + cost / max(size, 1)
            used.add(key)
        elif what < 0.6:
            key = random_.choice(list(ranks))
            policy.touch(key)
            used.add(key)
            hits, value = counts[key]
            counts[key], ranks[key] = (hits + 1, value), clock + (hits + 1) * value
        elif what < 0.8 and used:
            key = random_.choice(sorted(used))
            policy.admit(key)
            used.remove(key)
        elif what < 0.83:
            key = random_.choice(list(ranks))
            policy.remove(key)
            del ranks[key]
            used.discard(key)
        else:
            victim = policy.evict()
            assert (victim is None) == (not idle)
            if victim is not None:
                assert victim not in used
                rank = ranks.pop(victim)
                assert rank <= min((ranks[key] for key in ranks if key not in used), default=rank)
                clock = max(clock, rank)


def test_what_is_remembered_is_bounded_by_what_is_held() -> None:
    policy: SavedPerByte[str] = SavedPerByte()
    for number in range(10_000):
        add(policy, f"k{number}", 10, 1.0)
        use(policy, f"k{number}")
        if number >= 10:
            policy.remove(f"k{number - 10}")
    assert len(policy._worth) == 10
    assert len(policy._heap) <= 2 * 10 + 64 + 1
